// xstage bench moe: the fused layer under every schedule, beside what its products cost alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cli/bench.hpp"
#include "cli/bench_moe_fit.hpp"
#include "cli/bench_moe_plan.hpp"
#include "cli/bench_moe_rows.hpp"
#include "cli/fused_fit.hpp"
#include "cli/inputs.hpp"
#include "cli/outputs.hpp"
#include "cli/preparation.hpp"
#include "cli/provenance.hpp"
#include "cli/typed_options.hpp"
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
  double link_us = 0;                  ///< of the busiest rank's results
  double start_us = 0, landed_us = 0;  ///< predicted: until tiles begin; until tokens are there
};

class MoeBench {
 public:
  MoeBench(const Session& session, const MoeBenchOptions& options)
      : console_(session.console), options_(options) {}

  int operator()() {
    if (!options_.cross_validate.empty()) return judge_predictions(console_, options_);
    if (!options_.refit.empty()) return refit_times(console_, options_);
    document_ = {
        {"format", options_.table == "kernel" ? "xstage.moe-kernel-times/1" : "xstage.bench/1"},
        {"provenance", provenance("bench moe", {})}};
    document_["provenance"]["git_commit"] = git_commit();
    document_["provenance"]["kernel_digest"] = moe_kernel_digest();
    MoeBenchPlan plan = moe_bench_plan(options_).value();
    if (options_.backend != "cuda")
      return console_.fail(
          bad_input("only kernels on GPUs are timed", "--backend", options_.backend, "cuda"),
          document_);
    if (plan.layers.front().weights != shapes::WeightFormat::kW8A8)
      console_.log(fmt::format("no times of the kernel in {} are there to predict from: no auto",
                               options_.layer.weights));
    if (!plan.not_predicted.empty()) console_.log("no auto: " + plan.not_predicted);
    check_outputs({{"--out", options_.out,
                    options_.table == "kernel" ? "xstage.moe-kernel-times" : "xstage.bench",
                    options_.predict}});
    if (!options_.predict)
      if (const auto why = describe_node(plan.layers.front().ranks, document_))
        return console_.fail(*why, document_);
    if (!options_.predict)
      if (const auto why = leave_out_too_large(plan)) return console_.fail(*why, document_);
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
  /// Of a table, rows that no GPU here has the memory for are left out by name; a layer asked for
  /// alone is an error.
  std::optional<Error> leave_out_too_large(MoeBenchPlan& plan) {
    const auto memory = document_["node"]["memory_bytes"].get<std::int64_t>();
    // Context, stacks and what other programs hold.
    const std::int64_t room = memory - memory / 16;
    std::vector<MoeLayer> fitting;
    std::optional<Error> first;
    for (const MoeLayer& layer : plan.layers) {
      const std::int64_t bytes = timed_bytes(layer);
      if (bytes <= room) {
        fitting.push_back(layer);
        continue;
      }
      Error error = bad_input(
          "the layer does not fit into a GPU's memory", "--tokens",
          fmt::format("{} ({}, {})", layer.tokens, layer.shape.name, layer.routing.text()),
          fmt::format("what takes up to {:.1f} GiB a GPU; this takes {:.1f}",
                      static_cast<double>(room) / 0x1p30, static_cast<double>(bytes) / 0x1p30));
      console_.log("left out: " + error.message());
      document_["left_out"].push_back({{"layer", to_json(layer)}, {"why", error.message()}});
      if (!first) first = std::move(error);
    }
    if (fitting.empty()) return first;
    plan.layers = std::move(fitting);
    return {};
  }

  /// The predictions alone; needs no GPU.
  int predict(const MoeBenchPlan& plan) {
    std::vector<std::optional<Result<Prepared>>> rows(plan.layers.size());
    in_parallel(rows.size(), [&](std::size_t i) { rows[i] = prepare(plan, plan.layers[i]); });
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!*rows[i]) return console_.fail(rows[i]->error(), document_);
      const Prepared& ready = **rows[i];
      json row = {{"layer", to_json(plan.layers[i])},
                  {"remote_share", ready.routing.remote_share()},
                  {"link_us", ready.link_us},
                  {"landed_us", ready.landed_us},
                  {"start_us", ready.start_us},
                  {"memory_bytes", timed_bytes(plan.layers[i])},
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

  /// Rows that an interrupted run of the same table on the same kernel left in --out.
  void take_up() {
    if (options_.out.empty() || options_.table.empty()) return;
    // A pipe would wait for its writer.
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(options_.out, ignored)) return;
    std::ifstream in(options_.out);
    const std::string before(std::istreambuf_iterator<char>(in), {});
    for (json& row : rows_to_take_up(before, document_))
      if (done_.insert(key_of_row(row)).second) document_["rows"].push_back(std::move(row));
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
  Result<bool> measure(const MoeBenchPlan& plan) {
    console_.text(fmt::format("{:<18} {:>12} {:>6}  {}", "layer", "routing", "tokens",
                              "median us of the slowest rank"));
    document_["ok"] = false;
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < plan.layers.size(); ++i)
      if (!done_.contains(key_of_row({{"layer", to_json(plan.layers[i])}}))) wanted.push_back(i);
    // Drawing routings and simulating takes longer than measuring: all cores do it meanwhile.
    Preparation<Prepared> prepared(wanted, plan.layers.size(), [&plan, this](std::size_t i) {
      return prepare(plan, plan.layers[i]);
    });
    for (std::size_t i = 0; i < plan.layers.size();) {
      std::size_t end = i;
      std::int64_t most = 0;
      bool open = false;
      for (; end < plan.layers.size() && plan.layers[end].shape.name == plan.layers[i].shape.name;
           ++end) {
        most = std::max(most, plan.layers[end].tokens);
        json described = {{"layer", to_json(plan.layers[end])}};
        open = open || !done_.contains(key_of_row(described));
      }
      if (open)
        if (auto done = measure_layers(plan, prepared, i, end, most); !done) return done;
      i = end;
    }
    return true;
  }

  /// Without GPUs.
  Result<Prepared> prepare(const MoeBenchPlan& plan, const MoeLayer& layer) const {
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
                  {"products", (model->times.measured ? "" : "assumed: ") + model->times.source}};
    for (const MoeSchedule& s : out.schedules) {
      const auto same =
          std::find_if(choice.candidates.begin(), choice.candidates.end(),
                       [&](const sim::MoeCandidate& candidate) { return candidate.schedule == s; });
      out.predicted_us.push_back(same != choice.candidates.end()
                                     ? same->time_us
                                     : sim::predict(*model, s, layer.seed).time_us);
    }
    out.start_us = model->setup.kernel.start_us;
    out.landed_us = model->landed_us;
    return out;
  }

  Result<bool> measure_layers(const MoeBenchPlan& plan, Preparation<Prepared>& prepared,
                              std::size_t begin, std::size_t end, std::int64_t most) {
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
      if (done_.contains(key_of_row(row))) continue;
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

  Result<bool> measure_row(const MoeBenchPlan& plan, const MoeLayer& layer, const Prepared& ready,
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
    std::vector<Block> blocks;
    for (const layout::MoeDispatch way : plan.ways)
      for (std::size_t i = 0; i < ready.schedules.size() - (predicted ? 1 : 0); ++i)
        blocks.push_back({ready.schedules[i], way, {}, {}});
    if (predicted) add_automatic(plan, ready.schedules.back(), blocks);
    Products products;
    if (auto done = measure_rounds(plan, timed, cover, blocks, products); !done) {
      Error error = done.error();
      error.what += fmt::format(" ({})", key_of_row(row));
      return error;
    }
    std::string line;
    row["runs"] = json::array();
    const auto add = [&](const Block& block, bool asked) {
      json run = run_json(block);
      if (asked) run["asked"] = "auto";
      if (predicted && block.way == layout::MoeDispatch::kPerRank)
        for (std::size_t i = 0; i < ready.schedules.size(); ++i)
          if (ready.schedules[i] == block.schedule) run["predicted_us"] = ready.predicted_us[i];
      line += fmt::format(" {}{}{} {:.0f}", asked ? "auto: " : "", label(block.schedule),
                          block.way == layout::MoeDispatch::kPerSlot ? " per slot" : "",
                          run["time_us"]["median"].get<double>());
      if (run.contains("predicted_us"))
        line += fmt::format(" ({:.0f})", run["predicted_us"].get<double>());
      row["runs"].push_back(std::move(run));
    };
    const std::size_t named = plan.ways.size() * (ready.schedules.size() - (predicted ? 1 : 0));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i < named) add(blocks[i], false);
      // What `auto` took is measured once, also where it has been asked for by name.
      if (predicted && blocks[i].schedule == ready.schedules.back() &&
          (i >= named || blocks[i].way == layout::MoeDispatch::kPerRank))
        add(blocks[i], true);
    }
    add_products(products, row, line);
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

  /// Launches of one schedule with one way of dispatch, over all rounds.
  struct Block {
    MoeSchedule schedule;
    layout::MoeDispatch way = layout::MoeDispatch::kPerRank;
    std::vector<double> us, cold_us;
  };
  /// The same of what the products cost alone.
  struct Products {
    std::array<std::vector<double>, 2> ours, cublas;
    bool asked_cublas = false;
  };

  /// `auto`'s schedule where it is not among the blocks, and with a token sent once a slot.
  static void add_automatic(const MoeBenchPlan& plan, const MoeSchedule& chosen,
                            std::vector<Block>& blocks) {
    const auto add = [&](layout::MoeDispatch way) {
      for (const Block& block : blocks)
        if (block.schedule == chosen && block.way == way) return;
      blocks.push_back({chosen, way, {}, {}});
    };
    add(layout::MoeDispatch::kPerRank);
    if (plan.both_ways) add(layout::MoeDispatch::kPerSlot);
  }

  /// Every block in each of three rounds, each time at another place: clocks fall while a GPU
  /// works (at the power limit by up to a fifth), and what came first would always look fastest.
  Result<bool> measure_rounds(const MoeBenchPlan& plan, moe::TimedLayer& timed, std::int64_t cover,
                              std::vector<Block>& blocks, Products& products) {
    constexpr std::size_t kRounds = 3;
    const auto append = [](std::vector<double>& to, const std::vector<double>& some) {
      to.insert(to.end(), some.begin(), some.end());
    };
    const int launches =
        (plan.launches + static_cast<int>(kRounds) - 1) / static_cast<int>(kRounds);
    for (std::size_t round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        Block& block = blocks[(i + round * blocks.size() / kRounds) % blocks.size()];
        // Slow, and nobody's choice.
        const bool slow = block.schedule.kind == MoeScheduleKind::kInterleaved &&
                          2 * block.schedule.lead < cover && plan.launches > 3;
        rest(plan);
        moe::TimedLaunches what{block.schedule, block.way, slow ? 0 : 1, slow ? 1 : launches,
                                false};
        const auto us = timed.time(what);
        if (!us) return with_schedule(us.error(), block.schedule);
        append(block.us, *us);
        if (!plan.cold || slow) continue;
        what.cold = true;
        rest(plan);
        const auto cold = timed.time(what);
        if (!cold) return with_schedule(cold.error(), block.schedule);
        append(block.cold_us, *cold);
      }
      rest(plan);
      const auto ours = timed.time_products(launches);
      if (!ours) return ours.error();
      for (std::size_t linear = 0; linear < 2; ++linear)
        append(products.ours[linear], (*ours)[linear]);
      products.asked_cublas = plan.cublas;
      if (!plan.cublas) continue;
      rest(plan);
      const auto cublas = timed.time_cublas(launches);
      if (!cublas) return cublas.error();
      for (std::size_t linear = 0; *cublas && linear < 2; ++linear)
        append(products.cublas[linear], (**cublas)[linear]);
    }
    return true;
  }

  static void rest(const MoeBenchPlan& plan) {
    std::this_thread::sleep_for(std::chrono::milliseconds(plan.pause_ms));
  }

  static Error with_schedule(Error error, const MoeSchedule& s) {
    error.what += fmt::format(" ({})", label(s));
    return error;
  }

  static json run_json(const Block& block) {
    const bool wave = block.schedule.kind == MoeScheduleKind::kWave;
    json run = {{"schedule", wave ? "wave" : "interleaved"},
                {"lead", wave ? json() : json(block.schedule.lead)},
                {"group", wave ? json(block.schedule.group) : json()},
                {"dispatch", way_name(block.way)},
                {"time_us", times_json(block.us)},
                {"launches", block.us.size()},
                {"samples_us", block.us}};
    if (!block.cold_us.empty()) run["cold_us"] = times_json(block.cold_us);
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
          worst_run = key_of_row(row);
        }
      }
      if (best == 0 || chosen == 0) continue;
      if (chosen / best > worst_auto) {
        worst_auto = chosen / best;
        worst_row =
            fmt::format("{} (spread of its launches {:.1f} %)", key_of_row(row), 100 * spread);
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

  static void add_products(const Products& products, json& row, std::string& line) {
    const auto add = [&](const char* key, const char* name,
                         const std::array<std::vector<double>, 2>& us) {
      row[key] = {{"linear1", times_json(us[0])}, {"linear2", times_json(us[1])}};
      line += fmt::format("{} {:.0f} + {:.0f}", name, quantile(us[0], 0.5), quantile(us[1], 0.5));
    };
    add("products_us", " | products", products.ours);
    if (!products.asked_cublas) return;
    row["cublas_us"] = nullptr;
    if (!products.cublas[0].empty()) add("cublas_us", ", cuBLAS", products.cublas);
  }

  const Console& console_;
  const MoeBenchOptions& options_;
  json document_;
  std::set<std::string> done_;
  std::optional<model::Profile> profile_;
  plan::FusedTimes times_;
};

/// Refuses what was typed and would be ignored.
void refuse_idle_options(const CLI::App& app, const MoeBenchOptions& options) {
  if (!options.cross_validate.empty())
    refuse_idle_but(app, "with --cross-validate, which reads what was measured",
                    {"--cross-validate", "--profile", "--out"});
  if (!options.table.empty())
    refuse_idle(app, "with --table, which has its own layers",
                {"--shape", "--tokens", "--routing"});
  if (!options.refit.empty())
    refuse_idle_but(app, "with --refit, which reads what was measured",
                    {"--refit", "--profile", "--out"});
  if (options.table == "kernel")
    refuse_idle(app, "with --table kernel, which measures them", {"--kernel-times"});
  if (options.predict)
    refuse_idle(app, "with --predict", {"--launches", "--cold", "--dispatch", "--backend"});
}

}  // namespace

void add_bench_moe(CLI::App& bench, Session& session) {
  auto options = std::make_shared<MoeBenchOptions>();
  CLI::App* const app = bench.add_subcommand(
      "moe", "The fused expert-parallel layer under its schedules, and its products alone");
  app->add_flag("--json", session.console.json, "One JSON document on stdout");
  add_moe_layer_options(*app, options->layer);
  app->add_option("--backend", options->backend, "cuda")->capture_default_str();
  app->add_option(
      "--table", options->table,
      "Many layers, one row each: peers (six layers, 8192 and 1024 tokens), sweep (seven "
      "layers, three routings, three sizes), ep8 (seven layers, two routings, three sizes, and a "
      "peer's sizes; 8 ranks unless --ranks says otherwise), mechanism (three layers), kernel "
      "(what "
      "predictions rest on); an interrupted table is taken up again");
  app->add_option("--lead", options->leads, "Leads of the interleaved schedule (default 4 16 64)");
  app->add_option("--dispatch", options->dispatch, "per-rank, per-slot or both")
      ->capture_default_str();
  app->add_option("--launches", options->launches, "Launches measured (0: as the table says)");
  app->add_flag("--cold", options->cold, "Also with an L2 that was overwritten before each launch");
  app->add_flag("--predict", options->predict, "Only what the plan expects; needs no GPU");
  app->add_option(
      "--cross-validate", options->cross_validate,
      "Predict the rows of a measured table's inner sizes from its others; needs no GPU");
  app->add_option("--refit", options->refit,
                  "Fit the rows of a measured --table kernel anew; needs no GPU");
  app->add_option("--profile", options->profile, "Profile of the node (default: the shipped one)");
  app->add_option("--kernel-times", options->kernel_times,
                  "What --table kernel wrote on this node (default: the shipped one)");
  app->add_option("--out", options->out, "File for the JSON document");
  app->callback([options, app, &session] {
    options->ranks_given = app->count("--ranks") > 0;
    refuse_idle_options(*app, *options);
    session.action = [options, &session] { return MoeBench(session, *options)(); };
  });
}

}  // namespace xstage::cli
