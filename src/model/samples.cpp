#include "xstage/model/samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <istream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>

#include "xstage/input_file.hpp"

namespace xstage::model {
namespace {

constexpr std::size_t kMaxLine = 1 << 16;
constexpr std::int64_t kMaxRows = 2'000'000;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;
constexpr int kMaxSms = 1024;

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t comma = line.find(',');
    std::string_view cell = line.substr(0, comma);
    while (!cell.empty() && (cell.front() == ' ' || cell.front() == '\t')) cell.remove_prefix(1);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\t')) cell.remove_suffix(1);
    cells.push_back(cell);
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

/// Input is quoted in errors: printable, and not longer than a line.
std::string shown(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 40)) out += c >= 32 && c < 127 ? c : '?';
  return text.size() > 40 ? out + "…" : out;
}

/// One table with a header line; cells are fetched by column name, errors carry the place.
class Row {
 public:
  Row(const std::string& file, std::int64_t line, const std::map<std::string, std::size_t>& columns,
      const std::vector<std::string_view>& cells)
      : file_(file), line_(line), columns_(columns), cells_(cells) {}

  bool has(const char* column) const { return columns_.count(column) > 0; }
  std::string_view text(const char* column) const { return cells_[columns_.at(column)]; }

  double number(const char* column, double low, double high) const {
    const std::string_view cell = text(column);
    double value = 0;
    const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (code != std::errc{} || end != cell.data() + cell.size() || !std::isfinite(value) ||
        value < low || value > high)
      refuse(column, cell, fmt::format("a number from {} to {:g}", low, high));
    return value;
  }

  std::int64_t integer(const char* column, std::int64_t low, std::int64_t high) const {
    const std::string_view cell = text(column);
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (code != std::errc{} || end != cell.data() + cell.size() || value < low || value > high)
      refuse(column, cell, fmt::format("a whole number from {} to {}", low, high));
    return value;
  }

  /// A time in microseconds: none is longer than a quarter of an hour here.
  double time_us(const char* column) const { return number(column, 0, 1e9); }

  [[noreturn]] void refuse(const char* column, std::string_view cell, std::string allowed) const {
    throw Failure(bad_input(fmt::format("{}, line {}, column {}", file_, line_, column), column,
                            shown(cell), std::move(allowed)));
  }

 private:
  const std::string& file_;
  std::int64_t line_;
  const std::map<std::string, std::size_t>& columns_;
  const std::vector<std::string_view>& cells_;
};

Mechanism read_mechanism(const Row& row) {
  const auto mechanism = mechanism_named(row.text("mechanism"));
  if (!mechanism) row.refuse("mechanism", row.text("mechanism"), "st_v1, st_v2, st_v4, tma_bulk");
  return *mechanism;
}

bool read_choice(const Row& row, const char* column, std::string_view yes, std::string_view no) {
  const std::string_view cell = row.text(column);
  if (cell != yes && cell != no) row.refuse(column, cell, fmt::format("{} or {}", yes, no));
  return cell == yes;
}

std::int64_t read_bytes(const Row& row) {
  const std::int64_t bytes = row.integer("bytes", 16, kMaxBytes);
  if (bytes % 4 != 0) row.refuse("bytes", row.text("bytes"), "a multiple of 4");
  return bytes;
}

Sample read_burst_columns(const Row& row) {
  Sample s;
  s.mechanism = read_mechanism(row);
  s.remote = read_choice(row, "target", "remote", "local");
  s.both_ways = read_choice(row, "direction", "bi", "uni");
  s.producers = static_cast<int>(row.integer("producers", 1, kMaxSms));
  s.threads = static_cast<int>(row.integer("threads", 1, 1024));
  s.bytes = read_bytes(row);
  s.chunk = row.integer("chunk", 0, kMaxBytes);
  s.gap_us = row.time_us("gap_us");
  s.issue_p05_us = row.time_us("issue_p05");
  s.issue_p50_us = row.time_us("issue_p50");
  s.issue_us = row.time_us("issue_mean");
  s.issue_p95_us = row.time_us("issue_p95");
  if (s.issue_us <= 0) row.refuse("issue_mean", row.text("issue_mean"), "a time above 0");
  return s;
}

Sample read_window_row(const Row& row) {
  Sample s = read_burst_columns(row);
  s.experiment = Experiment::kWindow;
  s.period_us = row.time_us("period_aggregate");
  if (s.period_us <= 0)
    row.refuse("period_aggregate", row.text("period_aggregate"), "a time above 0");
  return s;
}

Sample read_burst_row(const Row& row) {
  Sample s = read_burst_columns(row);
  s.experiment = row.text("experiment") == "isolated" ? Experiment::kIsolated : Experiment::kOther;
  s.fence_us = row.time_us("fence_p50");
  if (row.has("drained") && row.has("bursts") && row.text("experiment") == "saturate") {
    const double drained_us = row.time_us("drained");
    const auto bursts = static_cast<double>(row.integer("bursts", 1, std::int64_t{1} << 40));
    if (drained_us > 0)
      s.drained_gb_s = s.producers * static_cast<double>(s.bytes) * bursts / (1000.0 * drained_us);
  }
  return s;
}

SmBursts read_sm_row(const Row& row) {
  SmBursts b;
  b.mechanism = read_mechanism(row);
  b.producers = static_cast<int>(row.integer("producers", 1, kMaxSms));
  b.threads = static_cast<int>(row.integer("threads", 1, 1024));
  b.bytes = read_bytes(row);
  b.gap_us = row.time_us("gap_us");
  b.block = static_cast<int>(row.integer("block", 0, kMaxSms - 1));
  b.sm = static_cast<int>(row.integer("smid", 0, kMaxSms - 1));
  b.bursts = row.integer("bursts", 0, std::int64_t{1} << 40);
  b.issue_us = row.time_us("issue_mean_us");
  return b;
}

struct Table {
  enum class Kind { kWindow, kBursts, kSm } kind;
  std::vector<const char*> columns;
};

const Table& table_of(const std::map<std::string, std::size_t>& columns) {
  static const std::vector<const char*> burst{"mechanism", "target",    "direction",  "producers",
                                              "threads",   "bytes",     "chunk",      "gap_us",
                                              "issue_p05", "issue_p50", "issue_mean", "issue_p95"};
  static const auto with = [](std::vector<const char*> base, std::vector<const char*> more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  static const Table window{Table::Kind::kWindow, with(burst, {"period_aggregate"})};
  static const Table bursts{Table::Kind::kBursts, with(burst, {"experiment", "fence_p50"})};
  static const Table sm{Table::Kind::kSm,
                        {"mechanism", "producers", "threads", "bytes", "gap_us", "block", "smid",
                         "bursts", "issue_mean_us"}};
  if (columns.count("smid")) return sm;
  if (columns.count("period_aggregate") || columns.count("window_us")) return window;
  return bursts;
}

/// Lines without their ends, comments taken out; refuses what no sample file has.
class Lines {
 public:
  Lines(std::istream& in, const std::string& file, SampleSet& set)
      : in_(in), file_(file), set_(set) {}

  bool next(std::string& line) {
    while (std::getline(in_, line)) {
      ++number_;
      if (line.size() > kMaxLine || line.find('\0') != std::string::npos)
        throw Failure(bad_input(fmt::format("{}, line {}: this is no text table", file_, number_),
                                "line length", fmt::format("{}", line.size()),
                                fmt::format("up to {} characters of text", kMaxLine)));
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      if (line.empty()) continue;
      if (line.front() == '#') {
        const std::size_t text = line.find_first_not_of("# ");
        if (set_.comments.size() < 64)
          set_.comments.push_back(text == std::string::npos ? "" : line.substr(text));
        continue;
      }
      return true;
    }
    return false;
  }
  std::int64_t number() const { return number_; }

 private:
  std::istream& in_;
  const std::string& file_;
  SampleSet& set_;
  std::int64_t number_ = 0;
};

void read_table(Lines& lines, const std::string& header, const std::string& file, SampleSet& set) {
  std::map<std::string, std::size_t> columns;
  const auto names = split(header);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!columns.emplace(std::string(names[i]), i).second)
      throw Failure(
          bad_input(fmt::format("{}, line {}: a column stands twice", file, lines.number()),
                    "column", shown(names[i]), "each column once"));
  }
  const Table& table = table_of(columns);
  for (const char* column : table.columns)
    if (!columns.count(column))
      throw Failure(bad_input(fmt::format("{}, line {}: a column is missing", file, lines.number()),
                              "column", column,
                              fmt::format("a header with {}", fmt::join(table.columns, ","))));
  std::string line;
  std::int64_t rows = 0;
  while (lines.next(line)) {
    const auto cells = split(line);
    if (cells.size() != names.size())
      throw Failure(bad_input(fmt::format("{}, line {}", file, lines.number()), "columns",
                              fmt::format("{}", cells.size()), fmt::format("{}", names.size())));
    if (++rows > kMaxRows)
      throw Failure(bad_input(file + " is too long", "rows", fmt::format("more than {}", kMaxRows),
                              fmt::format("up to {}", kMaxRows)));
    const Row row(file, lines.number(), columns, cells);
    switch (table.kind) {
      case Table::Kind::kWindow:
        set.samples.push_back(read_window_row(row));
        set.samples.back().line = lines.number();
        break;
      case Table::Kind::kBursts:
        set.samples.push_back(read_burst_row(row));
        set.samples.back().line = lines.number();
        break;
      case Table::Kind::kSm: set.sm_bursts.push_back(read_sm_row(row)); break;
    }
  }
  if (rows == 0)
    throw Failure(bad_input(file + " holds a header and no samples", "rows", "0", "1 or more"));
}

void read_leave_one_out(Lines& lines, std::string line, const std::string& file, SampleSet& set) {
  struct Gpu {
    std::vector<double> all;
    std::map<int, std::vector<double>> without;
  };
  std::map<int, Gpu> gpus;
  std::size_t width = 0;
  do {
    const auto cells = split(line);
    std::vector<double> values;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      double value = 0;
      const auto [end, code] =
          std::from_chars(cells[i].data(), cells[i].data() + cells[i].size(), value);
      if (code != std::errc{} || end != cells[i].data() + cells[i].size() ||
          !std::isfinite(value) || value < (i == 1 ? -1 : 0) || value > 1e12)
        throw Failure(bad_input(fmt::format("{}, line {}, column {}", file, lines.number(), i + 1),
                                "count", shown(cells[i]), "a number of bursts"));
      values.push_back(value);
    }
    if (width == 0) width = values.size();
    if (values.size() != width || width < 4 || width > kMaxSms + 2)
      throw Failure(
          bad_input(fmt::format("{}, line {}", file, lines.number()), "columns",
                    fmt::format("{}", values.size()),
                    width < 4 ? "GPU, SM left out, bursts of every SM" : fmt::format("{}", width)));
    Gpu& gpu = gpus[static_cast<int>(values[0])];
    std::vector<double> bursts(values.begin() + 2, values.end());
    const int left_out = static_cast<int>(values[1]);
    if (left_out >= static_cast<int>(width) - 2)
      throw Failure(bad_input(fmt::format("{}, line {}, column 2", file, lines.number()),
                              "SM left out", fmt::format("{}", left_out),
                              fmt::format("-1 to {}", width - 3)));
    if (left_out < 0)
      gpu.all = std::move(bursts);
    else
      gpu.without[left_out] = std::move(bursts);
  } while (lines.next(line));
  for (auto& [index, gpu] : gpus) {
    if (gpu.all.empty() || gpu.without.size() != gpu.all.size())
      throw Failure(bad_input(
          fmt::format("{}: GPU {} lacks runs", file, index), "runs",
          fmt::format("{}", gpu.without.size() + (gpu.all.empty() ? 0 : 1)),
          fmt::format("one with every SM (-1) and one without each of {} SMs", width - 2)));
    std::vector<std::vector<double>> without;
    for (auto& [sm, bursts] : gpu.without) without.push_back(std::move(bursts));
    set.sm_groups.push_back({index, groups_from_leave_one_out(gpu.all, without).value()});
  }
}

void read_groups_json(std::istream& in, const std::string& file, SampleSet& set) {
  const nlohmann::json document = parse_json(in).value_or(nlohmann::json());
  const auto refuse = [&](const char* key) -> Failure {
    return Failure(bad_input(file + " is no file of SM groups", key, "missing or of another type",
                             R"({"gpus": [{"gpu": 0, "groups": [[0, 1, …], …]}]})"));
  };
  if (!document.is_object() || !document.contains("gpus") || !document["gpus"].is_array())
    throw refuse("gpus");
  for (const auto& entry : document["gpus"]) {
    if (!entry.is_object() || !entry.contains("groups") || !entry["groups"].is_array() ||
        !entry.contains("gpu") || !entry["gpu"].is_number_integer())
      throw refuse("groups");
    SmGroups groups;
    groups.gpu = entry["gpu"].get<int>();
    for (const auto& group : entry["groups"]) {
      if (!group.is_array() || group.empty()) throw refuse("groups");
      std::vector<int> sms;
      for (const auto& sm : group) {
        if (!sm.is_number_integer() || sm.get<std::int64_t>() < 0 ||
            sm.get<std::int64_t>() >= kMaxSms)
          throw refuse("groups");
        sms.push_back(sm.get<int>());
      }
      groups.groups.push_back(std::move(sms));
    }
    if (groups.groups.empty()) throw refuse("groups");
    set.sm_groups.push_back(std::move(groups));
  }
}

}  // namespace

void SampleSet::merge(SampleSet other) {
  for (Sample& s : other.samples) s.file += static_cast<int>(files.size());
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(samples, other.samples);
  append(sm_bursts, other.sm_bursts);
  append(sm_groups, other.sm_groups);
  append(comments, other.comments);
  append(files, other.files);
}

Result<SampleSet> read_samples(std::istream& in, const std::string& name) {
  SampleSet set;
  set.files.push_back(name);
  try {
    while (in.peek() == ' ' || in.peek() == '\n' || in.peek() == '\r') in.get();
    if (in.peek() == '{') {
      read_groups_json(in, name, set);
      return set;
    }
    Lines lines(in, name, set);
    std::string line;
    if (!lines.next(line))
      return bad_input(name + " is empty", "file", name, "a sample file with a header and rows");
    const bool numbers =
        !line.empty() && (line.front() == '-' || (line.front() >= '0' && line.front() <= '9'));
    if (numbers)
      read_leave_one_out(lines, line, name, set);
    else
      read_table(lines, line, name, set);
  } catch (const Failure& failure) {
    return failure.error();
  }
  return set;
}

Result<SampleSet> read_samples(const std::filesystem::path& path) {
  const std::string file = path.filename().string();
  auto in = open_input(path, "samples");
  if (!in) return in.error();
  return read_samples(*in, file);
}

Result<std::vector<std::vector<int>>> groups_from_leave_one_out(
    const std::vector<double>& all, const std::vector<std::vector<double>>& without) {
  const std::size_t n = all.size();
  // A mate of a group of m gains 1/(m−1): 20 % and 33 % were seen, strangers vary by 3 %.
  constexpr double kGain = 0.10;
  std::vector<int> group(n, -1);
  std::vector<std::vector<int>> groups;
  for (std::size_t i = 0; i < n; ++i) {
    if (group[i] >= 0) continue;
    groups.push_back({static_cast<int>(i)});
    group[i] = static_cast<int>(groups.size()) - 1;
    for (std::size_t j = i + 1; j < n; ++j) {
      if (without[i].size() != n || all[j] <= 0)
        return bad_input("a run without bursts", "SM", fmt::format("{}", j), "bursts above 0");
      if (without[i][j] < all[j] * (1 + kGain)) continue;
      if (group[j] >= 0 || without[j][i] < all[i] * (1 + kGain))
        return bad_input("the leave-one-out runs contradict each other", "SMs",
                         fmt::format("{} and {}", i, j), "runs on an otherwise idle machine");
      group[j] = group[i];
      groups.back().push_back(static_cast<int>(j));
    }
  }
  return groups;
}

}  // namespace xstage::model
