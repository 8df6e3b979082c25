#include "xstage/model/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "xstage/input_file.hpp"

namespace xstage::model {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 16u << 20;

// ---- writing ----------------------------------------------------------------------------------

json curve_json(const Curve& curve) {
  json bytes = json::array();
  json us = json::array();
  for (const CurvePoint& point : curve) {
    bytes.push_back(point.bytes);
    us.push_back(point.us);
  }
  return {{"bytes", bytes}, {"us", us}};
}

json error_json(const ErrorSummary& error, const char* unit) {
  const std::string median = std::string("median") + unit;
  const std::string p95 = std::string("p95") + unit;
  if (error.points == 0) return {{"points", 0}, {median, nullptr}, {p95, nullptr}};
  return {{"points", error.points}, {median, error.median}, {p95, error.p95}};
}

json mechanism_json(const MechanismProfile& m) {
  json out{{"mechanism", name(m.mechanism)},
           {"threads", m.threads},
           {"chunk_bytes", m.chunk_bytes > 0 ? json(m.chunk_bytes) : json()},
           {"clock", m.clock},
           {"sm_rate_gb_per_s", m.sm_rate_gb_s},
           {"isolated_issue", curve_json(m.isolated_issue)},
           {"steady_issue", m.steady_issue.empty() ? json() : curve_json(m.steady_issue)},
           {"loop", nullptr},
           {"capacity", nullptr},
           {"undetermined", m.undetermined}};
  if (m.loop)
    out["loop"] = {{"without_gap", curve_json(m.loop->without_gap)},
                   {"with_gap", curve_json(m.loop->with_gap)},
                   {"gap_overhead_us", m.loop->gap_overhead_us},
                   {"residue_bytes", m.loop->residue_bytes},
                   {"residue_offset_us", m.loop->residue_offset_us},
                   {"residue_shape", m.loop->residue_shape},
                   {"overlap_factor", m.loop->overlap_factor},
                   {"overlap_bytes", m.loop->overlap_bytes}};
  if (m.capacity)
    out["capacity"] = {{"sm_bytes", m.capacity->sm_bytes},
                       {"group_bytes", m.capacity->group_bytes},
                       {"last_pass_max_bytes", m.capacity->last_pass_max_bytes},
                       {"lag_passes", m.capacity->lag_passes},
                       {"link_bytes", m.capacity->link_bytes},
                       {"grain_bytes", m.capacity->grain_bytes},
                       {"producers", m.capacity->producers}};
  return out;
}

// ---- reading ----------------------------------------------------------------------------------

/// A JSON object whose keys are fetched with their place, so that errors say where.
class Object {
 public:
  Object(const json& value, std::string path) : value_(value), path_(std::move(path)) {
    if (!value_.is_object()) refuse(path_, value_, "an object");
  }

  bool absent(const char* key) const { return !value_.contains(key) || value_.at(key).is_null(); }
  Object object(const char* key) const { return {at(key), place(key)}; }
  const json& array(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) refuse(place(key), value, "an array");
    return value;
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) refuse(place(key), value, "a text");
    return value.get<std::string>();
  }
  bool flag(const char* key) const {
    const json& value = at(key);
    if (!value.is_boolean()) refuse(place(key), value, "true or false");
    return value.get<bool>();
  }
  double number(const char* key, double low, double high) const {
    return number_of(at(key), place(key), low, high);
  }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    return integer_of(at(key), place(key), low, high);
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    if (absent(key)) return out;
    for (const json& item : array(key)) {
      if (!item.is_string()) refuse(place(key), item, "an array of texts");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  std::vector<int> integers(const char* key, int low, int high) const {
    std::vector<int> out;
    for (const json& item : array(key))
      out.push_back(static_cast<int>(integer_of(item, place(key), low, high)));
    return out;
  }
  Curve curve(const char* key) const {
    Curve out;
    const Object columns = object(key);
    const json& bytes = columns.array("bytes");
    const json& us = columns.array("us");
    if (bytes.size() != us.size() || bytes.empty())
      refuse(place(key), json(us.size()), "two columns of one length, at least one point");
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::int64_t low = out.empty() ? 1 : out.back().bytes + 1;
      out.push_back({integer_of(bytes[i], place(key) + ".bytes", low, std::int64_t{1} << 40),
                     number_of(us[i], place(key) + ".us", 0, 1e9)});
    }
    return out;
  }

  const std::string& path() const { return path_; }
  std::string place(const char* key) const { return path_.empty() ? key : path_ + "." + key; }

  [[noreturn]] static void refuse(const std::string& place, const json& value,
                                  std::string allowed) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 60) + "…";
    throw Failure(bad_input("this is no usable profile", place, text, std::move(allowed)));
  }

 private:
  const json& at(const char* key) const {
    if (!value_.contains(key)) refuse(place(key), json(), "this key must be there");
    return value_.at(key);
  }
  static double number_of(const json& value, const std::string& place, double low, double high) {
    if (!value.is_number()) refuse(place, value, "a number");
    const double number = value.get<double>();
    if (!std::isfinite(number) || number < low || number > high)
      refuse(place, value, fmt::format("{:g} to {:g}", low, high));
    return number;
  }
  static std::int64_t integer_of(const json& value, const std::string& place, std::int64_t low,
                                 std::int64_t high) {
    if (!value.is_number_integer()) refuse(place, value, "a whole number");
    const bool too_large = value.is_number_unsigned() &&
                           value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
    const std::int64_t number = too_large ? INT64_MAX : value.get<std::int64_t>();
    if (too_large || number < low || number > high)
      refuse(place, value, fmt::format("{} to {}", low, high));
    return number;
  }

  const json& value_;
  std::string path_;
};

MechanismProfile read_mechanism(const Object& in) {
  MechanismProfile m;
  const auto mechanism = mechanism_named(in.text("mechanism"));
  if (!mechanism)
    Object::refuse(in.place("mechanism"), json(in.text("mechanism")),
                   "st_v1, st_v2, st_v4, tma_bulk");
  m.mechanism = *mechanism;
  m.threads = static_cast<int>(in.integer("threads", 1, 1024));
  if (!in.absent("chunk_bytes")) m.chunk_bytes = in.integer("chunk_bytes", 1, 1 << 30);
  m.clock = in.text("clock");
  m.sm_rate_gb_s = in.number("sm_rate_gb_per_s", 1e-3, 1e6);
  m.isolated_issue = in.curve("isolated_issue");
  if (!in.absent("steady_issue")) m.steady_issue = in.curve("steady_issue");
  if (!in.absent("loop")) {
    const Object loop = in.object("loop");
    LoopCost cost;
    cost.without_gap = loop.curve("without_gap");
    cost.with_gap = loop.curve("with_gap");
    cost.gap_overhead_us = loop.number("gap_overhead_us", 0, 1e3);
    cost.residue_bytes = loop.number("residue_bytes", 0, 1e9);
    cost.residue_offset_us = loop.number("residue_offset_us", 0, 1e3);
    cost.residue_shape = static_cast<int>(loop.integer("residue_shape", 1, 1000));
    // Profiles of earlier fits lack these two.
    if (!loop.absent("overlap_factor")) cost.overlap_factor = loop.number("overlap_factor", 0, 1e3);
    if (!loop.absent("overlap_bytes")) cost.overlap_bytes = loop.number("overlap_bytes", 0, 1e9);
    m.loop = cost;
  }
  if (!in.absent("capacity")) {
    const Object capacity = in.object("capacity");
    Capacity& c = m.capacity.emplace();
    c.sm_bytes = capacity.number("sm_bytes", 0, 1e12);
    c.group_bytes = capacity.number("group_bytes", 0, 1e12);
    c.last_pass_max_bytes = capacity.number("last_pass_max_bytes", 0, 1e9);
    // Profiles of earlier fits lack these three.
    if (!capacity.absent("lag_passes")) c.lag_passes = capacity.number("lag_passes", 0, 1e3);
    if (!capacity.absent("link_bytes")) c.link_bytes = capacity.number("link_bytes", 0, 1e12);
    if (!capacity.absent("grain_bytes")) c.grain_bytes = capacity.number("grain_bytes", 0, 1e9);
    c.producers = capacity.integers("producers", 1, 1024);
  }
  m.undetermined = in.texts("undetermined");
  return m;
}

Topology read_topology(const Object& in, int sms) {
  Topology t;
  t.gpu = static_cast<int>(in.integer("gpu", 0, 1023));
  std::vector<bool> seen(static_cast<std::size_t>(sms), false);
  for (const json& group : in.array("groups")) {
    std::vector<int> members;
    if (!group.is_array() || group.empty())
      Object::refuse(in.place("groups"), group, "arrays of SMs, none of them empty");
    for (const json& sm : group) {
      if (!sm.is_number_integer() || sm.get<std::int64_t>() < 0 || sm.get<std::int64_t>() >= sms ||
          seen[sm.get<std::size_t>()])
        Object::refuse(in.place("groups"), sm, fmt::format("every SM from 0 to {} once", sms - 1));
      seen[sm.get<std::size_t>()] = true;
      members.push_back(sm.get<int>());
    }
    t.groups.push_back(std::move(members));
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end() && !t.groups.empty())
    Object::refuse(in.place("groups"), json(t.groups.size()),
                   fmt::format("every SM from 0 to {} once", sms - 1));
  t.order = in.integers("order", 0, sms - 1);
  std::vector<int> sorted = t.order;
  std::sort(sorted.begin(), sorted.end());
  if (static_cast<int>(sorted.size()) != sms ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    Object::refuse(in.place("order"), json(sorted.size()),
                   fmt::format("every SM from 0 to {} once", sms - 1));
  return t;
}

ErrorSummary read_error(const Object& in, const char* key, const char* unit) {
  ErrorSummary out;
  if (in.absent(key)) return out;
  const Object error = in.object(key);
  out.points = error.integer("points", 0, std::int64_t{1} << 40);
  if (out.points == 0) return out;
  out.median = error.number((std::string("median") + unit).c_str(), 0, 1e12);
  out.p95 = error.number((std::string("p95") + unit).c_str(), 0, 1e12);
  return out;
}

void check_format(const Object& in) {
  const std::string format = in.text("format");
  if (format == kProfileFormat) return;
  constexpr std::string_view kKind = "xstage.profile/";
  if (format.starts_with(kKind))
    throw Failure(bad_input("this profile was written by another version of xstage", "format",
                            format,
                            fmt::format("{}; make it again from its samples with "
                                        "`xstage fit`",
                                        kProfileFormat)));
  throw Failure(bad_input("this is no profile", "format", format, kProfileFormat));
}

Profile read_profile(const json& document) {
  const Object in(document, "");
  check_format(in);
  Profile p;
  p.name = in.text("name");
  const Object node = in.object("node");
  p.node.description = node.text("name");
  p.node.gpus = static_cast<int>(node.integer("gpus", 0, 1024));
  p.node.sms = static_cast<int>(node.integer("sms", 1, 1024));
  if (!node.absent("sm_clock_ghz")) p.node.sm_clock_ghz = node.number("sm_clock_ghz", 0.01, 100);
  const Object drain = in.object("drain");
  p.drain.one_way_gb_s = drain.number("one_way_gb_per_s", 1e-3, 1e6);
  if (!drain.absent("both_ways_gb_per_s"))
    p.drain.both_ways_gb_s = drain.number("both_ways_gb_per_s", 1e-3, 1e6);
  if (!drain.absent("from_bursts")) p.drain.from_bursts = drain.flag("from_bursts");
  std::size_t index = 0;
  for (const json& entry : in.array("mechanisms"))
    p.mechanisms.push_back(read_mechanism({entry, fmt::format("mechanisms[{}]", index++)}));
  if (p.mechanisms.empty()) Object::refuse("mechanisms", json::array(), "at least one mechanism");
  index = 0;
  for (const json& entry : in.array("topology"))
    p.topology.push_back(read_topology({entry, fmt::format("topology[{}]", index++)}, p.node.sms));
  if (!in.absent("quality")) {
    const Object quality = in.object("quality");
    p.quality.windowed_period = read_error(quality, "windowed_period", "_fraction");
    p.quality.windowed_issue_us = read_error(quality, "windowed_issue", "_us");
    p.quality.isolated_issue_us = read_error(quality, "isolated_issue", "_us");
  }
  p.notes = in.texts("notes");
  if (!in.absent("provenance")) {
    const Object provenance = in.object("provenance");
    p.provenance.tool = provenance.text("tool");
    if (!provenance.absent("created_utc")) p.provenance.date = provenance.text("created_utc");
    p.provenance.files = provenance.texts("files");
  }
  return p;
}

}  // namespace

json to_json(const Profile& p) {
  json mechanisms = json::array();
  for (const MechanismProfile& m : p.mechanisms) mechanisms.push_back(mechanism_json(m));
  json topology = json::array();
  for (const Topology& t : p.topology)
    topology.push_back({{"gpu", t.gpu}, {"groups", t.groups}, {"order", t.order}});
  return {{"format", kProfileFormat},
          {"name", p.name},
          {"node",
           {{"name", p.node.description},
            {"gpus", p.node.gpus},
            {"sms", p.node.sms},
            {"sm_clock_ghz", p.node.sm_clock_ghz > 0 ? json(p.node.sm_clock_ghz) : json()}}},
          {"drain",
           {{"one_way_gb_per_s", p.drain.one_way_gb_s},
            {"both_ways_gb_per_s", p.drain.both_ways_gb_s ? json(*p.drain.both_ways_gb_s) : json()},
            {"from_bursts", p.drain.from_bursts}}},
          {"mechanisms", mechanisms},
          {"topology", topology},
          {"quality",
           {{"windowed_period", error_json(p.quality.windowed_period, "_fraction")},
            {"windowed_issue", error_json(p.quality.windowed_issue_us, "_us")},
            {"isolated_issue", error_json(p.quality.isolated_issue_us, "_us")}}},
          {"notes", p.notes},
          {"provenance",
           {{"tool", p.provenance.tool},
            {"created_utc", p.provenance.date.empty() ? json() : json(p.provenance.date)},
            {"files", p.provenance.files}}}};
}

Result<Profile> profile_from_json(const json& document) {
  try {
    return read_profile(document);
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const json::exception& error) {
    return bad_input("this is no usable profile", "profile", error.what(), kProfileFormat);
  }
}

Result<Profile> load_profile(const std::filesystem::path& path) {
  auto in = open_input(path, "profile");
  if (!in) return in.error();
  std::error_code code;
  if (std::filesystem::file_size(path, code) > kMaxFileBytes)
    return bad_input("this file is too large for a profile", "profile", path.string(),
                     fmt::format("up to {} bytes", kMaxFileBytes));
  const auto document = parse_json(*in);
  if (!document) return bad_input("this file is no JSON", "profile", path.string(), kProfileFormat);
  return profile_from_json(*document);
}

Result<const MechanismProfile*> Profile::find(Mechanism mechanism, int threads,
                                              std::int64_t chunk_bytes) const {
  const MechanismProfile* first = nullptr;
  std::string measured;
  const auto better = [&](const MechanismProfile& m) {
    if (!first) return true;
    if (threads == 0 && m.threads != first->threads) return m.threads == 256;
    if (m.threads != first->threads) return false;
    if (first->chunk_bytes == 8192 || m.chunk_bytes == 8192) return m.chunk_bytes == 8192;
    return m.sm_rate_gb_s > first->sm_rate_gb_s;
  };
  for (const MechanismProfile& m : mechanisms) {
    if (m.mechanism != mechanism) continue;
    measured += fmt::format("{}{}", measured.empty() ? "" : ", ", m.threads);
    if (threads > 0 && m.threads != threads) continue;
    if (chunk_bytes > 0 && m.chunk_bytes == chunk_bytes) return &m;
    if (better(m)) first = &m;
  }
  if (!first && !measured.empty())
    return bad_input("the profile has no measurement with this many threads", "threads",
                     fmt::format("{}", threads), measured);
  if (!first)
    return bad_input("the profile has no measurement of this mechanism", "mechanism",
                     std::string(model::name(mechanism)), "a mechanism of the profile");
  return first;
}

std::vector<GroupClass> Profile::classes(int producers, int gpu) const {
  if (topology.empty()) return {{producers, 1}};
  const Topology* t = &topology.front();
  for (const Topology& candidate : topology)
    if (candidate.gpu == gpu) t = &candidate;
  if (t->groups.empty()) return {{producers, 1}};
  std::vector<int> group_of(t->order.size(), 0);
  for (std::size_t g = 0; g < t->groups.size(); ++g)
    for (int sm : t->groups[g]) group_of[static_cast<std::size_t>(sm)] = static_cast<int>(g);
  std::vector<int> active(t->groups.size(), 0);
  for (int i = 0; i < producers; ++i)
    ++active[static_cast<std::size_t>(
        group_of[static_cast<std::size_t>(t->order[static_cast<std::size_t>(i)])])];
  std::map<int, int> groups_by_size;
  for (int sms : active)
    if (sms > 0) ++groups_by_size[sms];
  std::vector<GroupClass> out;
  for (const auto& [sms, groups] : groups_by_size) out.push_back({sms, groups});
  return out;
}

}  // namespace xstage::model
