#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/fused_fit.hpp"
#include "cli/inputs.hpp"
#include "cli/layer_options.hpp"
#include "cli/moe_simulation.hpp"
#include "cli/provenance.hpp"
#include "cli/run.hpp"
#include "cli/typed_options.hpp"
#include "cpu/moe_errors.hpp"
#include "cuda/moe/host_layer.hpp"

namespace xstage::cli {
namespace {

struct RunMoeOptions {
  MoeLayerOptions layer;
  RunOptions run;
  std::string schedule = "all";
  std::string profile;  // of the node that `auto` chooses for; empty: the shipped one
  std::vector<std::int64_t> leads;
  std::int64_t group = 0;
  std::string dispatch = "per-rank";
  int block_m = 16;
  double clamp = 0;
  std::int64_t capacity = 0;
  std::int64_t check_every = 0;
  int stop_rank = -1;
  std::string stop_before = "tiles";
};

struct Step {
  const char* name;
  cpu::MoeStep step;
};
constexpr Step kSteps[] = {{"begin", cpu::MoeStep::kBegin},
                           {"publish", cpu::MoeStep::kPublish},
                           {"dispatch", cpu::MoeStep::kDispatch},
                           {"tiles", cpu::MoeStep::kTiles},
                           {"combine", cpu::MoeStep::kCombine}};

/// The schedules to run. `choice` gets what an automatic choice rests on.
Result<std::vector<schedule::MoeSchedule>> schedules_of(const RunMoeOptions& options,
                                                        const MoeLayer& layer,
                                                        nlohmann::json& choice) {
  if (options.schedule != "wave" && options.schedule != "interleaved" &&
      options.schedule != "auto" && options.schedule != "all")
    return bad_input("no such schedule", "--schedule", options.schedule,
                     "wave, interleaved, auto, all");
  std::vector<schedule::MoeSchedule> out;
  if (options.schedule == "auto") {
    const model::Profile profile =
        options.profile.empty() ? shipped_profile() : profile_of(options.profile);
    const auto routing = layer.make_routing();
    if (!routing) return routing.error();
    auto chosen =
        options.run.backend == "cuda"
            ? choose_fused(profile, plan::fused_times(), layer, *routing)
            : choose_schedule(profile, layer,
                              options.dispatch == "per-slot" ? sim::Dispatch::kOncePerPair
                                                             : sim::Dispatch::kOncePerRank);
    if (!chosen) return chosen.error();
    out.push_back(chosen->schedule);
    choice = {{"profile", reference(profile)},
              {"choice", std::move(chosen->choice)},
              {"candidates", std::move(chosen->candidates)},
              {"assumed", std::move(chosen->assumed)}};
    return out;
  }
  const auto local = static_cast<std::int32_t>(layer.experts_local());
  if (options.group < 0 || options.group > local)
    return bad_input("the group of the wave schedule is out of range", "--group",
                     fmt::format("{}", options.group), fmt::format("0 (planned) to {}", local));
  if (options.schedule != "interleaved") {
    const auto tiling =
        schedule::moe_tiling(layer.shape.hidden, layer.shape.intermediate, options.block_m, 128);
    const std::int64_t pairs = layer.tokens * layer.shape.topk * layer.ranks;
    const std::int32_t planned =
        schedule::wave_group(pairs, layer.shape.experts, local, tiling, options.run.workers);
    out.push_back(schedule::MoeSchedule::wave(
        options.group ? static_cast<std::int32_t>(options.group) : planned));
  }
  if (options.schedule != "wave") {
    auto leads = options.leads;
    if (leads.empty()) leads = {1, 4, 16};
    for (const std::int64_t lead : leads) {
      if (lead < 1 || lead > (std::int64_t{1} << 40))
        return bad_input("a lead is out of range", "--lead", fmt::format("{}", lead), "1 to 2^40");
      out.push_back(schedule::MoeSchedule::interleaved(lead));
    }
  }
  return out;
}

Result<layout::MoeConfig> config_of(const RunMoeOptions& options, const MoeLayer& layer,
                                    std::int64_t tokens) {
  layout::MoeConfig config;
  config.ranks = layer.ranks;
  config.topk = static_cast<std::int32_t>(layer.shape.topk);
  config.experts = layer.shape.experts;
  config.hidden = layer.shape.hidden;
  config.intermediate = layer.shape.intermediate;
  if (options.capacity < 0)
    return bad_input("an option of the run is out of range", "--capacity",
                     fmt::format("{}", options.capacity), "0 (as many as it has) or more");
  config.capacity = options.capacity > 0 ? options.capacity : std::max<std::int64_t>(tokens, 1);
  config.format = layer.weights;
  config.activation.clamp = static_cast<float>(options.clamp);
  config.block_m = options.block_m;
  config.workers = options.run.workers;
  if (options.dispatch != "per-rank" && options.dispatch != "per-slot")
    return bad_input("no such way of dispatch", "--dispatch", options.dispatch,
                     "per-rank, per-slot");
  config.dispatch = options.dispatch == "per-slot" ? layout::MoeDispatch::kPerSlot
                                                   : layout::MoeDispatch::kPerRank;
  const auto valid = layout::checked(config);
  if (!valid) return valid.error();
  return config;
}

/// Multiply-adds of one launch.
double work_of(const MoeLayer& layer, std::int64_t tokens) {
  return static_cast<double>(tokens) * layer.ranks *
         static_cast<double>(layer.shape.topk * 3 * layer.shape.hidden) *
         static_cast<double>(layer.shape.intermediate);
}

/// The reference costs about 2·10⁹ multiply-adds a second and core: check as many tokens as take
/// half a minute or so.
std::int64_t check_step(const RunMoeOptions& options, const MoeLayer& layer, std::int64_t tokens) {
  if (options.check_every > 0) return options.check_every;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(work_of(layer, tokens) / 5e10));
}

const char* kind_name(const schedule::MoeSchedule& s) {
  return s.kind == schedule::MoeScheduleKind::kWave ? "wave" : "interleaved";
}

nlohmann::json errors_json(const cpu::MoeErrors& e, std::int64_t step) {
  return {{"linear1_before_quantisation", e.linear1},
          {"linear1_limit", cpu::MoeErrors::kLinear1Limit},
          {"given_intermediate", e.given_intermediate},
          {"given_intermediate_limit", cpu::MoeErrors::kGivenLimit},
          {"end_to_end", e.end_to_end},
          {"end_to_end_limit", cpu::MoeErrors::kEndToEndLimit},
          {"worst_row", e.worst_row},
          {"worst_row_rank", e.worst_row_rank},
          {"worst_row_token", e.worst_row_token},
          {"tokens_checked", e.tokens_checked},
          {"token_step", step},
          {"finite", e.finite}};
}

std::vector<std::filesystem::path> inputs_of(const MoeLayer& layer, const std::string& profile) {
  std::vector<std::filesystem::path> out;
  if (layer.routing.kind == shapes::RoutingSpec::Kind::kFile) out.emplace_back(layer.routing.path);
  if (!profile.empty()) out.emplace_back(profile);
  return out;
}

class MoeRun {
 public:
  MoeRun(const Session& session, const RunMoeOptions& options)
      : session_(session), console_(session.console), options_(options) {}

  int operator()() {
    const MoeLayer layer = resolve(options_.layer).value();
    document_ = {{"format", "xstage.run/1"},
                 {"provenance", provenance("run moe", inputs_of(layer, options_.profile))},
                 {"backend", options_.run.backend},
                 {"ranks", layer.ranks},
                 {"workers", options_.run.workers},
                 {"schedules", nlohmann::json::array()}};
    document_["layer"] = to_json(layer);
    document_["layer"]["kind"] = "moe";
    if (auto error = check(options_.run, layer.ranks, true))
      return console_.fail(*error, document_);
    if (auto error = check_rows(options_.check_every, options_.stop_rank, layer.ranks))
      return console_.fail(*error, document_);
    // The sizes first: the schedules divide by tiles, and drawing a routing takes its time.
    const layout::MoeConfig asked = config_of(options_, layer, layer.tokens).value();
    nlohmann::json choice;
    const auto schedules = schedules_of(options_, layer, choice).value();
    if (!choice.is_null()) announce(choice);
    check_memory(layer, asked, layer.tokens);
    if (auto error = check_work(console_, options_.run,
                                work_of(layer, layer.tokens) * options_.run.runs *
                                    static_cast<double>(schedules.size())))
      return console_.fail(*error, document_);
    const auto routing = layer.make_routing().value();
    const std::int64_t tokens = routing.ranks.front().tokens;
    document_["layer"]["tokens"] = tokens;
    document_["remote_share"] = routing.remote_share();
    const layout::MoeConfig config = config_of(options_, layer, tokens).value();
    check_memory(layer, config, tokens);
    console_.log(fmt::format("weights: {} experts, {:.1f} MB", layer.shape.experts,
                             static_cast<double>(weight_bytes(layer)) * 1e-6));
    const auto weights =
        cpu::MoeWeights::random(layer.weights, layer.shape.experts, layer.shape.hidden,
                                layer.shape.intermediate, layer.seed)
            .value();
    const auto inputs = cpu::random_inputs(routing, layer.shape.hidden, layer.seed);
    if (options_.run.backend == "cuda")
      return run_on_gpus(layer, config, schedules, weights, inputs, tokens);
    for (const auto& s : schedules)
      if (const int code = run_schedule(config, s, weights, inputs); code >= 0) return code;
    return conclude(layer, tokens, [&](std::int64_t step) {
      return cpu::compare_with_reference(*group_, weights, inputs, outputs_, step);
    });
  }

 private:
  static std::int64_t weight_bytes(const MoeLayer& layer) {
    return cpu::MoeWeights::bytes_needed(layer.weights, layer.shape.experts, layer.shape.hidden,
                                         layer.shape.intermediate);
  }

  static void check_memory(const MoeLayer& layer, const layout::MoeConfig& config,
                           std::int64_t tokens) {
    // Beside the weights: the routing, and what the rows of this launch touch, in the ranks and in
    // the reference. Room for more tokens than there are is address space, not memory.
    const double pairs = static_cast<double>(tokens) * config.topk * config.ranks;
    const double needed =
        static_cast<double>(weight_bytes(layer)) +
        pairs * static_cast<double>(8 + 20 * config.intermediate + 12 * config.hidden);
    const std::int64_t available = available_memory();
    if (needed > 0.9 * static_cast<double>(available))
      throw Failure({ErrorKind::kBadInput, "this machine's memory cannot hold the layer", "memory",
                     fmt::format("{:.1f} GB needed", needed * 1e-9),
                     fmt::format("at most {:.1f} GB: fewer experts or tokens, or a smaller shape",
                                 0.9e-9 * static_cast<double>(available))});
  }

  /// Says what the automatic choice rests on, here and in the document.
  void announce(const nlohmann::json& choice) {
    for (const auto& c : choice["candidates"])
      console_.text(fmt::format("simulated {}: {:.1f} us, of it {:.1f} us stalled",
                                c["lead"].is_null()
                                    ? "wave, groups of " + c["group"].dump() + " experts"
                                    : "interleaved, lead " + c["lead"].dump(),
                                c["time_us"].get<double>(), c["stall_us"].get<double>()));
    console_.text(fmt::format("chosen for {}: {}", choice["profile"]["name"].get<std::string>(),
                              choice["choice"]["reason"].get<std::string>()));
    for (const auto& [key, value] : choice.items()) document_[key] = value;
  }

  /// Returns -1 to go on, else the exit code.
  int run_schedule(layout::MoeConfig config, const schedule::MoeSchedule& s,
                   const cpu::MoeWeights& weights, const std::vector<cpu::MoeInput>& inputs) {
    config.schedule = s;
    group_ = std::make_unique<cpu::MoeGroup>(
        cpu::MoeGroup::create(
            std::vector<layout::MoeConfig>(static_cast<std::size_t>(config.ranks), config))
            .value());
    cpu::MoeLaunchOptions launch;
    set_limits(launch, options_.run);
    launch.keep_linear1 = !options_.run.no_check;
    launch.stopped_rank = options_.stop_rank;
    for (const Step& step : kSteps)
      if (options_.stop_before == step.name) launch.stop_before = step.step;
    double seconds = 0;
    bool same = true;
    std::string digest;
    for (int run = 0; run < options_.run.runs; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      auto outputs = group_->launch(weights, inputs, launch);
      if (!outputs) {
        document_["waits"] = to_json(group_->waits());
        return console_.fail(outputs.error(), document_);
      }
      const double took =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      seconds = run == 0 ? took : std::min(seconds, took);
      digest = digest_of(*outputs);
      if (first_digest_.empty()) first_digest_ = digest;
      same = same && digest == first_digest_;
      outputs_ = std::move(*outputs);
    }
    record(s, seconds, digest, same);
    return -1;
  }

  void record(const schedule::MoeSchedule& s, double seconds, const std::string& digest,
              bool same) {
    const bool wave = s.kind == schedule::MoeScheduleKind::kWave;
    const std::string label = wave ? fmt::format("wave, groups of {} experts", s.group)
                                   : fmt::format("interleaved, lead {}", s.lead);
    console_.text(fmt::format("{:<32} {} launches, best {:10.6f} s, bits {} {}", label,
                              options_.run.runs, seconds, digest, same ? "" : "DIFFERENT"));
    document_["schedules"].push_back(
        {{"schedule", kind_name(s)},
         {"lead", wave ? nlohmann::json(nullptr) : nlohmann::json(s.lead)},
         {"group", wave ? nlohmann::json(s.group) : nlohmann::json(nullptr)},
         {"launches", options_.run.runs},
         {"seconds", seconds},
         {"bits_digest", digest},
         {"ok", same}});
    same_bits_ = same_bits_ && same;
  }

  /// The same launches and the same check with the fused kernel.
  int run_on_gpus(const MoeLayer& layer, const layout::MoeConfig& config,
                  const std::vector<schedule::MoeSchedule>& schedules,
                  const cpu::MoeWeights& weights, const std::vector<cpu::MoeInput>& inputs,
                  std::int64_t tokens) {
    std::vector<moe::HostInput> host;
    for (const cpu::MoeInput& input : inputs)
      host.push_back({input.tokens, input.x.data(), input.experts.data(), input.weights.data()});
    auto opened = moe::open_host_layer(
        config,
        {weights.w1.base(), weights.w1_scales.data(), weights.w2.base(), weights.w2_scales.data()},
        host,
        {static_cast<std::uint64_t>(options_.run.first_wait_limit_ms) * 1000000,
         static_cast<std::uint64_t>(options_.run.wait_limit_ms) * 1000000,
         options_.run.ranks_per_gpu});
    if (!opened) return console_.fail(opened.error(), document_);
    moe::HostLayer& gpus = **opened;
    document_["workers"] = gpus.layout().config.workers;
    tell_sharing(console_, options_.run, config.ranks, document_);
    document_["tile"] = {{"tokens", gpus.layout().config.block_m},
                         {"columns", gpus.layout().config.block_n}};
    for (schedule::MoeSchedule s : schedules) {
      if (s.kind == schedule::MoeScheduleKind::kWave && options_.group == 0)
        s.group = schedule::wave_group(tokens * config.topk * config.ranks, config.experts,
                                       static_cast<std::int32_t>(config.experts_local()),
                                       gpus.layout().tiling, gpus.layout().config.workers);
      double seconds = 0;
      bool same = true;
      std::string digest;
      for (int run = 0; run < options_.run.runs; ++run) {
        auto done = gpus.launch(s, config.dispatch);
        if (!done) return console_.fail(done.error(), document_);
        seconds =
            run == 0 ? done->microseconds * 1e-6 : std::min(seconds, done->microseconds * 1e-6);
        digest = digest_of(done->outputs);
        if (first_digest_.empty()) first_digest_ = digest;
        same = same && digest == first_digest_;
        outputs_ = std::move(done->outputs);
      }
      record(s, seconds, digest, same);
    }
    auto middle = gpus.middle();
    if (!middle) return console_.fail(middle.error(), document_);
    const cpu::MoeGroup::Middle given{{}, std::move(middle->quantised), std::move(middle->largest)};
    return conclude(layer, tokens, [&](std::int64_t step) {
      return cpu::compare_with_reference(gpus.layout(), given, weights, inputs, outputs_, step);
    });
  }

  /// `compare(step)`: errors of every step-th token.
  template <class Compare>
  int conclude(const MoeLayer& layer, std::int64_t tokens, Compare&& compare) {
    document_["same_bits"] = same_bits_;
    bool right = true;
    std::string failed = "two launches of the same layer gave different bits";
    if (!options_.run.no_check) {
      const std::int64_t step = check_step(options_, layer, tokens);
      console_.log("reference in double precision …");
      const cpu::MoeErrors errors = compare(step);
      right = errors.within_limits();
      document_["errors"] = errors_json(errors, step);
      for (auto& s : document_["schedules"]) {
        s["max_error"] = errors.end_to_end;  // the same bits, so the same error
        s["bound"] = cpu::MoeErrors::kEndToEndLimit;
        s["ok"] = s["ok"].get<bool>() && right;
      }
      console_.text(
          fmt::format("relative error, {} tokens: Linear-1 {:.2g} (limit {:.2g}), given the ranks' "
                      "intermediate "
                      "{:.2g} (limit {:.2g}), end to end {:.2g} (limit {:.2g}); worst row {:.2g} "
                      "(rank {}, token "
                      "{})",
                      errors.tokens_checked, errors.linear1, cpu::MoeErrors::kLinear1Limit,
                      errors.given_intermediate, cpu::MoeErrors::kGivenLimit, errors.end_to_end,
                      cpu::MoeErrors::kEndToEndLimit, errors.worst_row, errors.worst_row_rank,
                      errors.worst_row_token));
      if (!right)
        failed = fmt::format("the result is wrong: relative error {:.3g}, allowed {:.3g}",
                             errors.end_to_end, cpu::MoeErrors::kEndToEndLimit);
    }
    return finish(session_, options_.run, std::move(document_), right && same_bits_, failed);
  }

  const Session& session_;
  const Console& console_;
  const RunMoeOptions& options_;
  nlohmann::json document_;
  std::unique_ptr<cpu::MoeGroup> group_;
  std::vector<std::vector<std::uint16_t>> outputs_;
  std::string first_digest_;
  bool same_bits_ = true;
};

/// Refuses what was typed and would be ignored.
void refuse_idle_options(const CLI::App& app, const RunMoeOptions& options) {
  const std::string& schedule = options.schedule;
  const std::string with = "with --schedule " + schedule;
  if (schedule == "wave" || schedule == "auto") refuse_idle(app, with, {"--lead"});
  if (schedule == "interleaved" || schedule == "auto") refuse_idle(app, with, {"--group"});
  if (schedule != "auto") refuse_idle(app, with + ", only with auto", {"--profile"});
  refuse_idle_run_options(app, options.run);
}

}  // namespace

void add_run_moe(CLI::App& run, Session& session) {
  auto options = std::make_shared<RunMoeOptions>();
  options->layer.tokens = 64;  // a CPU computes what a GPU does in a millisecond in minutes
  CLI::App* const app = run.add_subcommand("moe", "A fused expert-parallel MoE layer");
  app->add_flag("--json", session.console.json, "One JSON document on stdout");
  add_moe_layer_options(*app, options->layer);
  add_run_options(*app, options->run);
  app->add_option("--schedule", options->schedule,
                  "wave, interleaved, auto (as plan and simulate choose), or all")
      ->capture_default_str();
  app->add_option("--profile", options->profile,
                  "Node that auto chooses for; default: the shipped profile of two H200");
  app->add_option("--lead", options->leads, "Leads of the interleaved schedule (default 1 4 16)");
  app->add_option("--group", options->group,
                  "Experts in a group of the wave schedule (0: planned)");
  app->add_option("--dispatch", options->dispatch,
                  "per-rank: a token travels once to each rank; "
                  "per-slot: once for each expert")
      ->capture_default_str();
  app->add_option("--block-m", options->block_m, "Tokens of a tile (cpu)")->capture_default_str();
  app->add_option("--clamp", options->clamp, "Clamp of SwiGLU (0: none)");
  app->add_option("--capacity", options->capacity,
                  "Tokens a rank has room for (0: as many as it has)");
  app->add_option("--check-every", options->check_every,
                  "Compare every n-th token with the reference (0: as many as take half a minute)");
  app->add_option("--stop-rank", options->stop_rank, "Drill: this rank stops answering");
  app->add_option("--stop-before", options->stop_before,
                  "Drill: before begin, publish, dispatch, tiles or combine")
      ->check(CLI::IsMember({"begin", "publish", "dispatch", "tiles", "combine"}))
      ->capture_default_str();
  app->callback([app, options, &session] {
    refuse_idle_options(*app, *options);
    session.action = [options, &session] { return MoeRun(session, *options)(); };
  });
}

}  // namespace xstage::cli
