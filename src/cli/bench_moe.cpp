// xstage bench moe: the fused layer under every schedule, beside what its products cost alone.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cli/bench.hpp"
#include "cli/fused_fit.hpp"
#include "cli/inputs.hpp"
#include "cli/layer_options.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cuda/build_info.hpp"
#include "cuda/moe/timed_layer.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/input_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;
using schedule::MoeSchedule;
using schedule::MoeScheduleKind;

// Set by the signal handler; looked at between two configurations.
volatile std::sig_atomic_t interrupted = 0;

struct BenchMoeOptions {
  MoeLayerOptions layer;
  std::string backend = "cuda";
  std::string table;
  std::vector<std::int64_t> leads;
  std::string dispatch = "per-rank";
  int launches = 0;
  bool cold = false;
  bool predict = false;
  std::string cross_validate;  ///< a document whose rows are predicted from its other sizes
  std::string profile, kernel_times;
  std::string out;
};

/// Layers of the tables, by name.
constexpr const char* kSeven[] = {"lingbot-video",  "qwen3.5-397b", "hy3",
                                  "mimo-v2.5",      "glm-5",        "deepseek-v4-flash",
                                  "deepseek-v4-pro"};

/// What a table measures of each row.
struct Plan {
  std::vector<MoeLayer> layers;  ///< of one shape behind each other
  std::vector<std::int64_t> leads;
  std::vector<layout::MoeDispatch> ways = {layout::MoeDispatch::kPerRank};
  int launches = 9;
  bool cold = false;
  bool phases_of_all = false;  ///< of every run, not only of one a row
  bool both_ways = false;      ///< what `auto` took also with a token sent once a slot
  bool cublas = false;         ///< beside our products alone
  bool predicted = true;       ///< with `auto`, and the predicted time of every run
};

const char* way_name(layout::MoeDispatch way) {
  return way == layout::MoeDispatch::kPerRank ? "per-rank" : "per-slot";
}

std::string label(const MoeSchedule& s) {
  return s.kind == MoeScheduleKind::kWave ? fmt::format("wave {}", s.group)
                                          : fmt::format("lead {}", s.lead);
}

/// A row before it is measured: its routing, its schedules, and what is expected of them.
struct Prepared {
  shapes::Routing routing;
  std::vector<MoeSchedule> schedules;  ///< with predictions, the last one is what `auto` took
  std::vector<double> predicted_us;    ///< of each schedule; empty: not asked for
  json choice;
  double link_us = 0;  ///< of the busiest rank's results
};

/// Drawing routings and simulating takes longer than measuring: all cores do it while the GPUs
/// work.
class Preparation {
 public:
  using Make = std::function<Result<Prepared>(std::size_t)>;
  Preparation(std::vector<std::size_t> wanted, std::size_t count, Make make) : rows_(count) {
    for (std::size_t i = 0; i < rows_.size(); ++i) futures_.push_back(rows_[i].get_future());
    worker_ = std::jthread([this, wanted = std::move(wanted), make = std::move(make)] {
      in_parallel(wanted.size(), [&](std::size_t i) {
        const std::size_t row = wanted[i];
        try {
          rows_[row].set_value(stop_ ? Error{ErrorKind::kInterrupted, "stopped", {}, {}, {}}
                                     : make(row));
        } catch (...) {
          rows_[row].set_exception(std::current_exception());
        }
      });
    });
  }
  ~Preparation() { stop_ = true; }
  /// Waits for it. Once a row.
  Result<Prepared> take(std::size_t row) { return futures_[row].get(); }

 private:
  std::vector<std::promise<Result<Prepared>>> rows_;
  std::vector<std::future<Result<Prepared>>> futures_;
  std::atomic<bool> stop_{false};
  std::jthread worker_;
};

class MoeBench {
 public:
  MoeBench(const Session& session, const BenchMoeOptions& options)
      : console_(session.console), options_(options) {}

  int operator()() {
    if (!options_.cross_validate.empty()) return judge_predictions();
    document_ = {
        {"format", options_.table == "kernel" ? "xstage.moe-kernel-times/1" : "xstage.bench/1"},
        {"provenance", provenance("bench moe", {})}};
    document_["provenance"]["git_commit"] = git_commit();
    document_["provenance"]["kernel_digest"] = moe_kernel_digest();
    const Plan plan = plan_of().value();
    if (options_.backend != "cuda")
      return console_.fail(
          bad_input("only kernels on GPUs are timed", "--backend", options_.backend, "cuda"),
          document_);
    probe_output(options_.out);
    if (!options_.predict)
      if (const auto why = describe_node(plan.layers.front().ranks, document_))
        return console_.fail(*why, document_);
    profile_ = profile_or_shipped(options_.profile);
    times_ = kernel_times_or_shipped(options_.kernel_times);
    document_["profile"] = reference(*profile_);
    document_["table"] = options_.table.empty() ? json() : json(options_.table);
    document_["rows"] = json::array();
    if (options_.predict) return predict(plan);
    take_up();
    interrupted = 0;
    const auto handler = [](int) {
      if (interrupted) std::_Exit(static_cast<int>(ErrorKind::kInterrupted));
      interrupted = 1;
    };
    const auto old_int = std::signal(SIGINT, handler), old_term = std::signal(SIGTERM, handler);
    const auto done = measure(plan);
    std::signal(SIGINT, old_int);
    std::signal(SIGTERM, old_term);
    document_["ok"] = done.ok();
    if (!done) {
      const int code = console_.fail(done.error(), document_);
      std::fflush(stdout);
      // Behind a kernel that does not end an orderly exit waits for ever.
      if (done.error().kind == ErrorKind::kTimeout) std::_Exit(code);
      return code;
    }
    if (options_.table == "kernel") {
      auto fit = fit_fused_times(*profile_, document_["rows"]);
      if (!fit) return console_.fail(fit.error(), document_);
      document_["fit"] = std::move(*fit);
    }
    if (plan.predicted) summarise();
    if (auto kept = keep(); !kept) return console_.fail(kept.error(), document_);
    console_.document(document_);
    return 0;
  }

 private:
  Result<Plan> plan_of() const {
    Plan plan;
    for (const std::int64_t lead : options_.leads)
      if (lead < 1 || lead > (std::int64_t{1} << 40))
        return bad_input("a lead is out of range", "--lead", fmt::format("{}", lead), "1 to 2^40");
    if (options_.launches < 0 || options_.launches > 64)
      return bad_input("the launches are out of range", "--launches",
                       fmt::format("{}", options_.launches), "1 to 64");
    if (options_.dispatch == "per-slot")
      plan.ways = {layout::MoeDispatch::kPerSlot};
    else if (options_.dispatch == "both")
      plan.ways.push_back(layout::MoeDispatch::kPerSlot);
    else if (options_.dispatch != "per-rank")
      return bad_input("no such way of dispatch", "--dispatch", options_.dispatch,
                       "per-rank, per-slot, both");
    const auto add = [&](const char* shape, const char* routing,
                         std::int64_t tokens) -> Result<bool> {
      MoeLayerOptions one = options_.layer;
      one.shape = shape;
      one.routing = routing;
      one.tokens = tokens;
      if (options_.table == "ep8") one.ranks = 8;
      auto layer = resolve(one);
      if (!layer) return layer.error();
      plan.layers.push_back(*layer);
      return true;
    };
    if (options_.table == "peers") {
      for (const char* shape : kSeven)
        for (const std::int64_t tokens : {8192, 1024})
          if (std::string_view(shape) != "mimo-v2.5")
            if (const auto done = add(shape, "balanced", tokens); !done) return done.error();
      plan.leads = {16, 64};
      plan.launches = 15;
      plan.cold = plan.cublas = plan.both_ways = true;
    } else if (options_.table == "ep8") {
      for (const char* shape : {"deepseek-v4-flash", "deepseek-v4-pro"})
        for (const std::int64_t tokens : {512, 1024, 2048, 4096, 8192})
          if (const auto done = add(shape, "balanced", tokens); !done) return done.error();
      plan.leads = {16, 64};
      plan.launches = 15;
      plan.cold = true;
    } else if (options_.table == "mechanism") {
      for (const char* shape : {"lingbot-video", "qwen3.5-397b", "deepseek-v4-flash"})
        for (const char* routing : {"balanced", "remote:0.875"})
          if (const auto done = add(shape, routing, 8192); !done) return done.error();
      plan.leads = {16, 64};
      plan.phases_of_all = true;
    } else if (options_.table == "sweep") {
      for (const char* shape : kSeven)
        for (const char* routing : {"balanced", "zipf:1.2", "remote:0.875"})
          for (const std::int64_t tokens : {2048, 8192, 16384})
            if (const auto done = add(shape, routing, tokens); !done) return done.error();
      plan.leads = {1, 4, 16, 64};
    } else if (options_.table == "kernel") {
      // None of the sizes of the other tables.
      for (const char* shape : kSeven)
        for (const char* routing : {"balanced", "zipf:1.2", "remote:0.875"})
          for (const std::int64_t tokens : {1536, 5120, 20480})
            if (const auto done = add(shape, routing, tokens); !done) return done.error();
      plan.leads = {1, 4, 16, 64};
      plan.predicted = false;
    } else if (options_.table.empty()) {
      auto layer = resolve(options_.layer);
      if (!layer) return layer.error();
      plan.layers.push_back(*layer);
      plan.leads = {4, 16, 64};
      plan.launches = 15;
      plan.cold = plan.cublas = true;
    } else {
      return bad_input("no such table", "--table", options_.table,
                       "peers, sweep, kernel, ep8, mechanism");
    }
    if (options_.predict && options_.table == "kernel")
      return bad_input("predictions rest on this table", "--predict", "--table kernel",
                       "another table");
    if (!options_.leads.empty()) plan.leads = options_.leads;
    if (options_.launches > 0) plan.launches = options_.launches;
    plan.cold = plan.cold || options_.cold;
    return plan;
  }

  /// Predictions of measured rows that took no part in the fit; needs no GPU.
  int judge_predictions() {
    document_ = {{"format", "xstage.bench/1"},
                 {"provenance", provenance("bench moe", {options_.cross_validate})}};
    profile_ = profile_or_shipped(options_.profile);
    auto in = open_input(options_.cross_validate, "--cross-validate").value();
    const auto measured = parse_json(in);
    if (!measured || !measured->is_object() || !measured->contains("rows"))
      return console_.fail(bad_input("not a document of bench moe", "--cross-validate",
                                     options_.cross_validate, "what --table wrote"),
                           document_);
    document_["measured"] = (*measured)["provenance"];
    document_["node"] = measured->value("node", json());
    try {
      auto rows = cross_validate(*profile_, (*measured)["rows"]);
      if (!rows) return console_.fail(rows.error(), document_);
      document_["rows"] = std::move(*rows);
    } catch (const json::exception& error) {
      return console_.fail(bad_input("a row lacks something", "--cross-validate", error.what(),
                                     "what --table sweep or kernel wrote"),
                           document_);
    }
    std::vector<double> errors, ratios;
    for (const json& row : document_["rows"]) {
      ratios.push_back(row["auto_over_fastest"].get<double>());
      for (const json& run : row["runs"])
        errors.push_back(
            std::abs(run["predicted_us"].get<double>() / run["measured_us"].get<double>() - 1));
    }
    console_.text(
        fmt::format("{} runs predicted from the other sizes: error median {:.1f} %, p95 {:.1f} %, "
                    "worst {:.1f} %; "
                    "auto over the fastest: median {:.3f}, worst {:.3f}",
                    errors.size(), 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.95),
                    100 * quantile(errors, 1), quantile(ratios, 0.5), quantile(ratios, 1)));
    document_["ok"] = true;
    if (auto kept = keep(); !kept) return console_.fail(kept.error(), document_);
    console_.document(document_);
    return 0;
  }

  /// The predictions alone; needs no GPU.
  int predict(const Plan& plan) {
    std::vector<std::optional<Result<Prepared>>> rows(plan.layers.size());
    in_parallel(rows.size(), [&](std::size_t i) { rows[i] = prepare(plan, plan.layers[i]); });
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!*rows[i]) return console_.fail(rows[i]->error(), document_);
      const Prepared& ready = **rows[i];
      json row = {{"layer", to_json(plan.layers[i])},
                  {"remote_share", ready.routing.remote_share()},
                  {"link_us", ready.link_us},
                  {"auto", ready.choice},
                  {"runs", json::array()}};
      std::string line;
      for (std::size_t j = 0; j < ready.predicted_us.size(); ++j) {
        const bool chosen = j + 1 == ready.schedules.size();
        row["runs"].push_back(
            {{"schedule", label(ready.schedules[j])}, {"predicted_us", ready.predicted_us[j]}});
        if (chosen) row["runs"].back()["asked"] = "auto";
        line += fmt::format(" {}{} ({:.0f})", chosen ? "auto: " : "", label(ready.schedules[j]),
                            ready.predicted_us[j]);
      }
      document_["rows"].push_back(std::move(row));
      console_.text(fmt::format("{:<18} {:>12} {:>6} {}", plan.layers[i].shape.name,
                                plan.layers[i].routing.text(), plan.layers[i].tokens, line));
    }
    document_["ok"] = true;
    if (auto kept = keep(); !kept) return console_.fail(kept.error(), document_);
    console_.document(document_);
    return 0;
  }

  static std::string key_of(const json& row) {
    return fmt::format("{} {} {} {}", row["layer"]["shape"].get<std::string>(),
                       row["layer"]["routing"].get<std::string>(),
                       row["layer"]["tokens"].get<std::int64_t>(),
                       row["layer"]["ranks"].get<int>());
  }

  /// Rows that an interrupted run of the same table on the same kernel left in --out.
  void take_up() {
    if (options_.out.empty() || options_.table.empty()) return;
    std::ifstream in(options_.out);
    if (!in) return;
    const json before = json::parse(in, nullptr, false);
    // Pointers, since a file that another program wrote may lack either key.
    const json::json_pointer digest("/provenance/kernel_digest");
    if (!before.is_object() || before.value("table", json()) != document_["table"] ||
        before.value("ok", true) || !before.contains(digest) || !before.contains("rows") ||
        before[digest] != document_[digest])
      return;
    for (const json& row : before["rows"]) {
      done_.insert(key_of(row));
      document_["rows"].push_back(row);
    }
    if (!done_.empty())
      console_.log(fmt::format("{} rows of {} are taken up", done_.size(), options_.out));
  }

  Result<bool> keep() const {
    if (options_.out.empty()) return true;
    if (auto written = write_file(options_.out, document_.dump(1) + "\n"); !written)
      return written.error();
    return true;
  }

  /// A layer is set up once, with room for the most tokens that its rows need.
  Result<bool> measure(const Plan& plan) {
    console_.text(fmt::format("{:<18} {:>12} {:>6}  {}", "layer", "routing", "tokens",
                              "median us of the slowest rank"));
    document_["ok"] = false;
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < plan.layers.size(); ++i)
      if (!done_.contains(key_of({{"layer", to_json(plan.layers[i])}}))) wanted.push_back(i);
    Preparation prepared(wanted, plan.layers.size(),
                         [&plan, this](std::size_t i) { return prepare(plan, plan.layers[i]); });
    for (std::size_t i = 0; i < plan.layers.size();) {
      std::size_t end = i;
      std::int64_t most = 0;
      bool open = false;
      for (; end < plan.layers.size() && plan.layers[end].shape.name == plan.layers[i].shape.name;
           ++end) {
        most = std::max(most, plan.layers[end].tokens);
        json described = {{"layer", to_json(plan.layers[end])}};
        open = open || !done_.contains(key_of(described));
      }
      if (open)
        if (auto done = measure_layers(plan, prepared, i, end, most); !done) return done;
      i = end;
    }
    return true;
  }

  /// Without GPUs.
  Result<Prepared> prepare(const Plan& plan, const MoeLayer& layer) const {
    auto routing = layer.make_routing();
    if (!routing) return routing.error();
    Prepared out;
    out.routing = std::move(*routing);
    const auto tiling = schedule::moe_tiling(layer.shape.hidden, layer.shape.intermediate,
                                             sim::kFusedBlockM, sim::kFusedBlockN);
    out.schedules.push_back(MoeSchedule::wave(schedule::wave_group(
        layer.tokens * layer.ranks * layer.shape.topk, layer.shape.experts,
        static_cast<std::int32_t>(layer.experts_local()), tiling, profile_->node.sms)));
    for (const std::int64_t lead : plan.leads)
      out.schedules.push_back(MoeSchedule::interleaved(lead));
    if (!plan.predicted) return out;
    const auto model = fused_moe(*profile_, times_, layer, out.routing);
    if (!model) return model.error();
    out.link_us = model->link_us;
    const sim::MoeChoice choice = sim::choose_fused_schedule(*model, layer.seed);
    out.schedules.push_back(choice.candidates[choice.best].schedule);
    out.choice = {{"schedule", label(out.schedules.back())},
                  {"reason", choice.reason},
                  {"products", model->times.source}};
    for (const MoeSchedule& s : out.schedules)
      out.predicted_us.push_back(sim::predict(*model, s, layer.seed).time_us);
    return out;
  }

  Result<bool> measure_layers(const Plan& plan, Preparation& prepared, std::size_t begin,
                              std::size_t end, std::int64_t most) {
    const MoeLayer& first = plan.layers[begin];
    layout::MoeConfig config;
    config.ranks = first.ranks;
    config.topk = static_cast<std::int32_t>(first.shape.topk);
    config.experts = first.shape.experts;
    config.hidden = first.shape.hidden;
    config.intermediate = first.shape.intermediate;
    config.capacity = std::max<std::int64_t>(most, 1);
    config.format = first.weights;
    auto timed = moe::open_timed_layer(config, first.seed);
    if (!timed) return timed.error();
    if ((*timed)->layout().tiling != schedule::moe_tiling(config.hidden, config.intermediate,
                                                          sim::kFusedBlockM, sim::kFusedBlockN))
      return Error{ErrorKind::kCheckFailed,
                   "the kernel's tiles are not those of its predictions",
                   {},
                   {},
                   {}};
    for (std::size_t i = begin; i < end; ++i) {
      json row = {{"layer", to_json(plan.layers[i])}};
      if (done_.contains(key_of(row))) continue;
      if (interrupted)
        return Error{ErrorKind::kInterrupted, "interrupted; what was measured is kept", {}, {}, {}};
      const auto ready = prepared.take(i);
      if (!ready) return ready.error();
      if (auto done = measure_row(plan, plan.layers[i], *ready, **timed, row); !done) return done;
      document_["rows"].push_back(std::move(row));
      if (auto kept = keep(); !kept) return kept;
    }
    return true;
  }

  Result<bool> measure_row(const Plan& plan, const MoeLayer& layer, const Prepared& ready,
                           moe::TimedLayer& timed, json& row) {
    std::vector<moe::TimedRouting> of_rank;
    for (const auto& rank : ready.routing.ranks)
      of_rank.push_back({rank.tokens, rank.experts.data(), rank.weights.data()});
    if (auto done = timed.set_routing(of_rank); !done) return done;
    row["layer"]["kind"] = "moe";
    row["remote_share"] = ready.routing.remote_share();
    const layout::MoeLayout& layout = timed.layout();
    const std::int64_t cover = schedule::covering_lead(layout.tiling, layout.config.workers);
    row["covering_lead"] = cover;
    const bool predicted = !ready.predicted_us.empty();
    if (predicted) {
      row["auto"] = ready.choice;
      row["link_us"] = ready.link_us;
    }
    std::string line;
    row["runs"] = json::array();
    const auto measure = [&](std::size_t i, layout::MoeDispatch way) -> Result<bool> {
      const MoeSchedule& s = ready.schedules[i];
      const bool chosen = predicted && i + 1 == ready.schedules.size();
      auto run = measure_run(plan, timed, s, way, cover);
      if (!run) {
        Error error = run.error();
        error.what += fmt::format(" ({}, {})", key_of(row), label(s));
        return error;
      }
      if (chosen) (*run)["asked"] = "auto";
      if (predicted && way == layout::MoeDispatch::kPerRank)
        (*run)["predicted_us"] = ready.predicted_us[i];
      line += fmt::format(" {}{}{} {:.0f}", chosen ? "auto: " : "", label(s),
                          way == layout::MoeDispatch::kPerSlot ? " per slot" : "",
                          (*run)["time_us"]["median"].get<double>());
      if (run->contains("predicted_us"))
        line += fmt::format(" ({:.0f})", (*run)["predicted_us"].get<double>());
      row["runs"].push_back(std::move(*run));
      return true;
    };
    for (const layout::MoeDispatch way : plan.ways)
      for (std::size_t i = 0; i < ready.schedules.size(); ++i)
        if (auto done = measure(i, way); !done) return done;
    if (plan.both_ways && predicted && plan.ways.size() == 1)
      if (auto done = measure(ready.schedules.size() - 1, layout::MoeDispatch::kPerSlot); !done)
        return done;
    if (auto done = measure_products(plan, timed, row, line); !done) return done;
    if (plan.phases_of_all) {
      for (json& run : row["runs"]) {
        if (run["dispatch"] != "per-rank") continue;
        const auto s = run["lead"].is_null()
                           ? MoeSchedule::wave(run["group"].get<std::int32_t>())
                           : MoeSchedule::interleaved(run["lead"].get<std::int64_t>());
        if (auto done = add_phases(timed, s, run); !done) return done;
      }
    } else if (auto done = add_phases(
                   timed, MoeSchedule::interleaved(std::max<std::int64_t>(16, cover)), row);
               !done) {
      return done;
    }
    console_.text(fmt::format("{:<18} {:>12} {:>6} {}", layer.shape.name, layer.routing.text(),
                              layer.tokens, line));
    std::fflush(stdout);
    return true;
  }

  /// Where the time of a launch goes; with XSTAGE_MOE_MECHANISM also what its stores and its
  /// staging cost.
  static Result<bool> add_phases(moe::TimedLayer& timed, const MoeSchedule& s, json& to) {
    const auto phases = timed.phases({s, layout::MoeDispatch::kPerRank, 0, 3});
    if (!phases) return phases.error();
    json& out = to["phases_us"];
    out = {{"order", label(s)},
           {"start", phases->start},
           {"combined", phases->combined},
           {"end", phases->end},
           {"marks", json::object()}};
    for (const auto& [name, us] : phases->marks) out["marks"][name] = us;
    return true;
  }

  Result<json> measure_run(const Plan& plan, moe::TimedLayer& timed, const MoeSchedule& s,
                           layout::MoeDispatch way, std::int64_t cover) {
    const bool wave = s.kind == MoeScheduleKind::kWave;
    moe::TimedLaunches what{s, way, 2, plan.launches, false};
    if (!wave && s.lead < cover) {  // slow, and nobody's choice
      what.warm_up = 1;
      what.launches = std::min(plan.launches, 3);
    }
    const auto us = timed.time(what);
    if (!us) return us.error();
    json run = {{"schedule", wave ? "wave" : "interleaved"},
                {"lead", wave ? json() : json(s.lead)},
                {"group", wave ? json(s.group) : json()},
                {"dispatch", way_name(way)},
                {"time_us", times_json(*us)},
                {"launches", us->size()},
                {"samples_us", *us}};
    if (plan.cold && (wave || s.lead >= cover)) {
      what.cold = true;
      const auto cold = timed.time(what);
      if (!cold) return cold.error();
      run["cold_us"] = times_json(*cold);
    }
    return run;
  }

  /// How `auto` and the predictions did, over all rows.
  void summarise() {
    double worst_auto = 0, worst_error = 0;
    std::string worst_row, worst_run;
    std::vector<double> errors;
    for (const json& row : document_["rows"]) {
      double best = 0, chosen = 0, spread = 0;
      for (const json& run : row["runs"]) {
        if (run["dispatch"] != "per-rank") continue;
        const double us = run["time_us"]["median"].get<double>();
        if (run.contains("asked")) {
          chosen = us;
          spread = (run["time_us"]["p95"].get<double>() - run["time_us"]["p05"].get<double>()) / us;
        } else if (best == 0 || us < best) {
          best = us;
        }
        if (!run.contains("predicted_us")) continue;
        const double error = run["predicted_us"].get<double>() / us - 1;
        errors.push_back(std::abs(error));
        if (errors.back() > worst_error) {
          worst_error = errors.back();
          worst_run = key_of(row);
        }
      }
      if (best == 0 || chosen == 0) continue;
      if (chosen / best > worst_auto) {
        worst_auto = chosen / best;
        worst_row = fmt::format("{} (spread of its launches {:.1f} %)", key_of(row), 100 * spread);
      }
    }
    if (errors.empty()) return;
    document_["summary"] = {{"auto_over_best_worst", worst_auto},
                            {"auto_over_best_worst_row", worst_row},
                            {"prediction_error_median", quantile(errors, 0.5)},
                            {"prediction_error_p95", quantile(errors, 0.95)},
                            {"prediction_error_worst", worst_error},
                            {"prediction_error_worst_row", worst_run}};
    console_.text(fmt::format("auto over the fastest: worst {:.3f}, {}", worst_auto, worst_row));
    console_.text(fmt::format(
        "predicted over measured: median error {:.1f} %, p95 {:.1f} %, worst {:.1f} %, {}",
        100 * quantile(errors, 0.5), 100 * quantile(errors, 0.95), 100 * worst_error, worst_run));
  }

  /// What the products cost alone.
  Result<bool> measure_products(const Plan& plan, moe::TimedLayer& timed, json& row,
                                std::string& line) {
    const auto ours = timed.time_products(plan.launches);
    if (!ours) return ours.error();
    row["products_us"] = {{"linear1", times_json((*ours)[0])}, {"linear2", times_json((*ours)[1])}};
    line += fmt::format(" | products {:.0f} + {:.0f}", quantile((*ours)[0], 0.5),
                        quantile((*ours)[1], 0.5));
    if (!plan.cublas) return true;
    const auto cublas = timed.time_cublas(plan.launches);
    if (!cublas) return cublas.error();
    row["cublas_us"] = nullptr;
    if (!*cublas) return true;
    const auto& us = **cublas;
    row["cublas_us"] = {{"linear1", times_json(us[0])}, {"linear2", times_json(us[1])}};
    line += fmt::format(", cuBLAS {:.0f} + {:.0f}", quantile(us[0], 0.5), quantile(us[1], 0.5));
    return true;
  }

  const Console& console_;
  const BenchMoeOptions& options_;
  json document_;
  std::set<std::string> done_;
  std::optional<model::Profile> profile_;
  plan::FusedTimes times_;
};

}  // namespace

void add_bench_moe(CLI::App& bench, Session& session) {
  auto options = std::make_shared<BenchMoeOptions>();
  CLI::App* const app = bench.add_subcommand(
      "moe", "The fused expert-parallel layer under its schedules, and its products alone");
  app->add_flag("--json", session.console.json, "One JSON document on stdout");
  add_moe_layer_options(*app, options->layer);
  app->add_option("--backend", options->backend, "cuda")->capture_default_str();
  app->add_option(
      "--table", options->table,
      "Many layers, one row each: peers (six layers, 8192 and 1024 tokens), sweep (seven "
      "layers, three routings, three sizes), kernel (what predictions rest on); an "
      "interrupted table is taken up again");
  app->add_option("--lead", options->leads, "Leads of the interleaved schedule (default 4 16 64)");
  app->add_option("--dispatch", options->dispatch, "per-rank, per-slot or both")
      ->capture_default_str();
  app->add_option("--launches", options->launches, "Launches measured (0: as the table says)");
  app->add_flag("--cold", options->cold, "Also with an L2 that was overwritten before each launch");
  app->add_flag("--predict", options->predict, "Only what the plan expects; needs no GPU");
  app->add_option(
      "--cross-validate", options->cross_validate,
      "Predict the rows of a measured table's inner sizes from its others; needs no GPU");
  app->add_option("--profile", options->profile, "Profile of the node (default: the shipped one)");
  app->add_option("--kernel-times", options->kernel_times,
                  "What --table kernel wrote on this node (default: the shipped one)");
  app->add_option("--out", options->out, "File for the JSON document");
  app->callback([options, &session] {
    session.action = [options, &session] { return MoeBench(session, *options)(); };
  });
}

}  // namespace xstage::cli
