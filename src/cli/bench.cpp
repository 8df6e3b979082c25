// xstage bench: what its layers share, and xstage bench ulysses: times on GPUs, with the baselines
// in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <span>

#include "cli/bench.hpp"
#include "cli/inputs.hpp"
#include "cli/layer_options.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cli/typed_options.hpp"
#include "cli/ulysses_fit.hpp"
#include "cuda/build_info.hpp"
#include "cuda/driver.hpp"
#include "cuda/ulysses/group.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/input_file.hpp"
#include "xstage/layout/check.hpp"
#include "xstage/plan/plan.hpp"

namespace xstage::cli {
namespace {

using ulysses::Sequence;

struct BenchOptions {
  AttentionLayerOptions layer;
  std::string backend = "cuda";
  std::string table;
  std::string order = "remote-first";
  int rounds = 0;
  std::string out;
  std::string spans;
  bool predict = false;
  std::vector<std::string> fit;
};

struct Timed {
  Sequence sequence;
  const char* what;
  const char* baseline_of;
};
constexpr Timed kTimed[] = {
    {Sequence::kAttention, "attention", ""},
    {Sequence::kFused, "fused", ""},
    {Sequence::kAttentionThenPush, "attention + push", "fused"},
    {Sequence::kPerDestination, "one launch a destination", "fused"},
    {Sequence::kPush, "push of the output", ""},
    {Sequence::kInputs, "push of Q, K and V", ""},
    {Sequence::kLayer, "layer: push of Q, K and V, fused", ""},
};

/// Shapes of --table: the paper's (4 local heads), and public models.
struct TableShape {
  const char* name;
  std::int64_t seq, heads_local, head_dim;
};
constexpr TableShape kPaper[] = {
    {"paper", 8192, 4, 128},  {"paper", 16384, 4, 128}, {"paper", 32768, 4, 128},
    {"paper", 49152, 4, 128}, {"paper", 65536, 4, 128}, {"", 8192, 12, 128},
    {"", 16384, 12, 128},     {"", 8192, 20, 128},      {"", 16384, 20, 128},
    {"", 32768, 12, 128},     {"", 32768, 20, 128}};
constexpr TableShape kModels[] = {{"FLUX.1", 4608, 12, 128},
                                  {"Qwen-Image", 7145, 12, 128},
                                  {"LTX-2", 6144, 16, 128},
                                  {"Wan-14B 480p", 32760, 20, 128},
                                  {"CogVideoX-5B", 17776, 24, 64}};

/// What sequences cost above attention alone, µs: medians of the differences within a round.
struct Above {
  double fused = 0, serial = 0;
};

std::vector<double> differences(std::vector<double> longer, const std::vector<double>& shorter) {
  for (std::size_t i = 0; i < longer.size(); ++i) longer[i] -= shorter[i];
  return longer;
}

double difference(const std::vector<double>& longer, const std::vector<double>& shorter) {
  return quantile(differences(longer, shorter), 0.5);
}

/// Of the mean of values.
double standard_error(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / n / std::max(1.0, n - 1));
}

/// Times and SM cycles of a sequence, a sample a round. Times are the slower rank's. Cycles are
/// those of the rank with the lowest clock, among those with the most heads: at a higher clock a
/// rank waits for it, and counts the wait.
struct Samples {
  std::vector<double> us, cycles;

  void add(const std::vector<ulysses::Taken>& ranks, const std::vector<bool>& busiest) {
    const ulysses::Taken* slowest = nullptr;
    double most_us = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const ulysses::Taken& taken = ranks[rank];
      most_us = std::max(most_us, taken.us);
      if (busiest[rank] &&
          (slowest == nullptr || taken.cycles * slowest->us < slowest->cycles * taken.us))
        slowest = &taken;
    }
    us.push_back(most_us);
    cycles.push_back(slowest->cycles);
  }
};

/// Ranks with as many query heads as any.
std::vector<bool> busiest_ranks(const layout::UlyssesConfig& config) {
  std::vector<std::int64_t> heads;
  for (std::int32_t rank = 0; rank < config.ranks; ++rank)
    heads.push_back(
        layout::heads_of(config.heads, config.kv_heads, config.ranks, rank).query.count);
  const std::int64_t most = *std::max_element(heads.begin(), heads.end());
  std::vector<bool> out;
  for (const std::int64_t count : heads) out.push_back(count == most);
  return out;
}

class Bench {
 public:
  Bench(const Session& session, const BenchOptions& options)
      : console_(session.console), options_(options) {}

  int operator()() {
    if (!options_.fit.empty()) return fit();
    document_ = {{"format", "xstage.bench/1"}, {"provenance", provenance("bench ulysses", {})}};
    document_["provenance"]["git_commit"] = git_commit();
    document_["provenance"]["kernel_digest"] = ulysses_kernel_digest();
    const std::vector<AttentionLayer> layers = layers_of().value();
    if (options_.backend != "cuda")
      return console_.fail(
          bad_input("only kernels on GPUs are timed", "--backend", options_.backend, "cuda"),
          document_);
    if (options_.rounds < 0 || options_.rounds > 1000)
      return console_.fail(bad_input("the rounds are out of range", "--rounds",
                                     fmt::format("{}", options_.rounds), "0 to 1000"),
                           document_);
    if (options_.order != "remote-first" && options_.order != "row-major")
      return console_.fail(
          bad_input("no such order", "--order", options_.order, "remote-first, row-major"),
          document_);
    check_outputs({{"--out", options_.out, "xstage.bench", options_.predict},
                   {"--spans", options_.spans, "xstage.spans"}});
    if (options_.predict) return predict(layers);
    if (const auto why = describe_node(layers.front().ranks, document_))
      return console_.fail(*why, document_);
    document_["layers"] = nlohmann::json::array();
    console_.text(
        fmt::format("{:<14} {:>6} {:>5} {:>4} | {:>10} {:>8} | {:>10} {:>9} | {:>10} "
                    "{:>7} | {:>9} {:>7} | {:>9}",
                    "", "S", "heads", "D", "attention", "TFLOP/s", "fused", "residual", "attn+push",
                    "fused", "push QKV", "GB/s", "hidden"));
    for (const AttentionLayer& layer : layers)
      if (const Result<bool> timed = time_layer(layer); !timed) {
        document_["ok"] = false;
        return console_.fail(timed.error(), document_);
      }
    return answer();
  }

 private:
  int answer() {
    document_["ok"] = true;
    if (!options_.out.empty())
      if (auto written = write_file(options_.out, document_.dump(1) + "\n"); !written)
        return console_.fail(written.error(), document_);
    console_.document(document_);
    return 0;
  }

  /// What measured layers say of the residual and of the baselines; needs no GPU.
  int fit() {
    document_ = {
        {"format", "xstage.ulysses-times/1"},
        {"provenance", provenance("bench ulysses", {options_.fit.begin(), options_.fit.end()})}};
    document_["provenance"]["git_commit"] = git_commit();
    check_outputs({{"--out", options_.out, "xstage.ulysses-times"}});
    std::vector<nlohmann::json> measured;
    for (const std::string& file : options_.fit) {
      auto in = open_input(file, "--fit").value();
      auto one = parse_json(in);
      if (!one || !one->is_object() || !one->contains("layers"))
        return console_.fail(bad_input("not a document of bench ulysses", "--fit", file,
                                       "what --table or ulysses_torch.py wrote"),
                             document_);
      if (one->contains("node")) document_["node"] = (*one)["node"];
      measured.push_back(std::move(*one));
    }
    try {
      auto found = fit_ulysses_times(shipped_profile(), measured);
      if (!found) return console_.fail(found.error(), document_);
      document_["fit"] = std::move(*found);
    } catch (const nlohmann::json::exception& error) {
      return console_.fail(bad_input("a layer lacks something", "--fit", error.what(),
                                     "what --table or ulysses_torch.py wrote"),
                           document_);
    }
    console_.text(document_["fit"].dump(1));
    return answer();
  }

  /// The predictions alone; needs no GPU.
  int predict(const std::vector<AttentionLayer>& layers) {
    const model::Profile profile = shipped_profile();
    document_["ranks"] = layers.front().ranks;
    document_["profile"] = reference(profile);
    document_["layers"] = nlohmann::json::array();
    for (const AttentionLayer& layer : layers) {
      nlohmann::json described = to_json(layer);
      described["kind"] = "ulysses";
      const auto predicted = predict_ulysses(profile, plan::ulysses_times(), layer);
      console_.text(fmt::format(
          "{:<14} {:>6} x {:>3}: attention {:.1f}, fused {:.1f}, attention + push {:.1f}, with "
          "permutes and NCCL {:.1f} us",
          layer.name, layer.seq, (layer.heads + layer.ranks - 1) / layer.ranks,
          predicted["attention_us"].get<double>(), predicted["fused_us"].get<double>(),
          predicted["push_serial_us"].get<double>(), predicted["nccl_serial_us"].get<double>()));
      document_["layers"].push_back({{"layer", described}, {"predicted", predicted}});
    }
    return answer();
  }

  Result<std::vector<AttentionLayer>> layers_of() const {
    if (options_.table.empty()) {
      auto layer = resolve(options_.layer);
      if (!layer) return layer.error();
      return std::vector<AttentionLayer>{*layer};
    }
    if (options_.table != "paper" && options_.table != "models")
      return bad_input("no such table", "--table", options_.table, "paper, models");
    std::vector<AttentionLayer> out;
    const std::span<const TableShape> shapes =
        options_.table == "paper" ? std::span<const TableShape>(kPaper) : kModels;
    for (const TableShape& shape : shapes) {
      AttentionLayerOptions sizes = options_.layer;
      sizes.seq = shape.seq;
      sizes.heads_local = shape.heads_local;
      sizes.head_dim = shape.head_dim;
      auto layer = resolve(sizes);
      if (!layer) return layer.error();
      layer->name = shape.name;
      out.push_back(std::move(*layer));
    }
    return out;
  }

  Result<bool> time_layer(const AttentionLayer& layer) {
    layout::UlyssesConfig config = config_of(layer);
    config.order = options_.order == "remote-first" ? schedule::UlyssesOrderKind::kRemoteFirst
                                                    : schedule::UlyssesOrderKind::kRowMajor;
    if (const auto valid = layout::checked(config); !valid) return valid.error();
    constexpr std::uint64_t kLimitNs = 10'000'000'000;
    auto group = ulysses::Group::create(config, kLimitNs);
    if (!group) return group.error();
    if (const auto set = (*group)->set_random_inputs(layer.seed); !set) return set.error();
    if (const auto ran = (*group)->run(); !ran) return ran.error();
    if (!options_.spans.empty()) {
      const auto spans = (*group)->spans();
      if (!spans) return spans.error();
      if (auto written = write_file(options_.spans, *spans); !written) return written.error();
    }
    return take_times(layer, config, **group);
  }

  /// Rounds of the sequences take turns, in a random order: the power limit remembers what ran
  /// before, and in a fixed order a sequence behind a light one was up to 2 % faster.
  Result<bool> take_times(const AttentionLayer& layer, const layout::UlyssesConfig& config,
                          ulysses::Group& group) {
    constexpr std::size_t kCount = std::size(kTimed);
    constexpr double kShapeUs = 1.6e6;
    std::vector<Samples> samples(kCount);
    const std::vector<bool> busiest = busiest_ranks(config);
    std::vector<int> launches(kCount, 1);
    std::vector<std::size_t> turn(kCount);
    std::iota(turn.begin(), turn.end(), std::size_t{0});
    std::mt19937_64 random(layer.seed);
    double round_us = 0;
    int rounds = 1;
    for (int round = -2; round < rounds; ++round) {
      std::shuffle(turn.begin(), turn.end(), random);
      for (const std::size_t i : turn) {
        const auto taken = group.time(kTimed[i].sequence, 1, launches[i]);
        if (!taken) return taken.error();
        Samples now;
        now.add(taken->front(), busiest);
        // Several launches a round, for 4 ms: so that their start does not count.
        if (round < 0)
          launches[i] = std::clamp(static_cast<int>(4000 / now.us.front()), 1, 20);
        else
          samples[i].add(taken->front(), busiest);
        if (round == -1) round_us += now.us.front() * launches[i];
      }
      if (round == -1)
        rounds = options_.rounds > 0 ? options_.rounds
                                     : std::clamp(static_cast<int>(kShapeUs / round_us), 21, 81);
    }
    nlohmann::json rows = nlohmann::json::array();
    std::vector<double> median;
    for (std::size_t i = 0; i < kCount; ++i) {
      median.push_back(quantile(samples[i].us, 0.5));
      rows.push_back({{"what", kTimed[i].what},
                      {"baseline_of", kTimed[i].baseline_of},
                      {"time_us", times_json(samples[i].us)},
                      {"runs", rounds},
                      {"launches_a_run", launches[i]},
                      {"samples_us", samples[i].us},
                      {"samples_cycles", samples[i].cycles}});
    }
    report(layer, config, std::move(rows), median, above_of(samples));
    return true;
  }

  /// By the SMs' cycles, at the clock that attention had: near the power limit a round's clock
  /// differs from the next one's by more than the fused output costs.
  Above above_of(const std::vector<Samples>& samples) {
    std::vector<double> clock;
    for (std::size_t i = 0; i < samples[0].us.size(); ++i)
      clock.push_back(samples[0].cycles[i] / samples[0].us[i]);
    clock_mhz_ = quantile(clock, 0.5);
    residual_error_us_ =
        standard_error(differences(samples[1].cycles, samples[0].cycles)) / clock_mhz_;
    above_by_time_ = {difference(samples[1].us, samples[0].us),
                      difference(samples[2].us, samples[0].us)};
    return {difference(samples[1].cycles, samples[0].cycles) / clock_mhz_,
            difference(samples[2].cycles, samples[0].cycles) / clock_mhz_};
  }

  void report(const AttentionLayer& layer, const layout::UlyssesConfig& config, nlohmann::json rows,
              const std::vector<double>& us, const Above& above) {
    const double attention = us[0], fused = us[1], serial = us[2], inputs = us[5];
    std::int64_t most_heads = 0, most_keys = 0;
    for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
      const auto share = layout::heads_of(config.heads, config.kv_heads, config.ranks, rank);
      most_heads = std::max(most_heads, share.query.count);
      most_keys = std::max(most_keys, share.key.count);
    }
    const double flop = 4.0 * static_cast<double>(config.batch * most_heads * config.head_dim) *
                        static_cast<double>(config.rows) * static_cast<double>(config.key_rows);
    // What one rank sends to the others: its rows, the heads of the others.
    const double sent = 2.0 * static_cast<double>(config.batch * config.head_dim) *
                        static_cast<double>(config.rows) / config.ranks *
                        static_cast<double>(config.heads + 2 * config.kv_heads) *
                        (config.ranks - 1) / config.ranks;
    const double residual = above.fused;
    const double hidden = 1 - residual / above.serial;
    nlohmann::json described = to_json(layer);
    described["kind"] = "ulysses";
    document_["layers"].push_back({{"layer", described},
                                   {"order", options_.order},
                                   {"rows", std::move(rows)},
                                   {"attention_tflops", flop / attention * 1e-6},
                                   {"clock_mhz", clock_mhz_},
                                   {"residual_us", residual},
                                   {"residual_error_us", residual_error_us_},
                                   {"residual_by_time_us", above_by_time_.fused},
                                   {"residual_share", residual / attention},
                                   {"hidden_share", hidden},
                                   {"serial_less_attention_us", above.serial},
                                   {"serial_less_attention_by_time_us", above_by_time_.serial},
                                   {"fused_over_push", serial / fused},
                                   {"fused_over_per_destination", us[3] / fused},
                                   {"inputs_gb_per_s", sent / inputs * 1e-3},
                                   {"predicted", predicted(layer, flop / attention * 1e-6)}});
    console_.text(fmt::format(
        "{:<14} {:>6} {:>5} {:>4} | {:>10.1f} {:>8.0f} | {:>10.1f} {:>8.2f}% | {:>10.1f} {:>6.3f}x "
        "| {:>9.1f} {:>7.0f} | {:>8.1f}%",
        layer.name, layer.seq, most_heads, layer.head_dim, attention, flop / attention * 1e-6,
        fused, 100 * residual / attention, serial, serial / fused, inputs, sent / inputs * 1e-3,
        100 * hidden));
  }

  /// What the plan says of this layer at the rate that attention alone had, on the profile that
  /// ships with xstage.
  static nlohmann::json predicted(const AttentionLayer& layer, double tflops) {
    const model::Profile profile = shipped_profile();
    plan::UlyssesProblem problem;
    problem.batch = layer.batch;
    problem.seq = layer.seq;
    problem.heads_local = (layer.heads + layer.ranks - 1) / layer.ranks;
    problem.head_dim = layer.head_dim;
    problem.ranks = layer.ranks;
    const auto plan = plan::plan_ulysses(profile, problem, plan::given_rate(tflops));
    if (!plan || !plan->overlap) return {};
    return {{"residual_us", plan->overlap->residual_us},
            {"push_us", plan->overlap->push_us},
            {"hidden_share", plan->overlap->hidden_share}};
  }

  const Console& console_;
  const BenchOptions& options_;
  nlohmann::json document_;
  double clock_mhz_ = 0;  // this and the next of the last layer
  double residual_error_us_ = 0;
  Above above_by_time_;
};

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

nlohmann::json times_json(const std::vector<double>& us) {
  return {{"median", quantile(us, 0.5)}, {"p05", quantile(us, 0.05)}, {"p95", quantile(us, 0.95)}};
}

std::optional<Error> describe_node(int ranks, nlohmann::json& document) {
  const auto api = cuda::system_driver();
  const cuda::NodeState node = cuda::look_around(*api);
  if (!node.why_no_gpu.empty())
    return Error{ErrorKind::kNoGpu, "no GPU to time a layer on: " + node.why_no_gpu, {}, {}, {}};
  if (auto why = cuda::why_not_ranks(node, ranks)) return why;
  const cuda::GpuState& gpu = node.gpus.front();
  document["node"] = {{"gpu", gpu.name},
                      {"gpus", ranks},
                      {"driver", node.driver_version},
                      {"cuda_driver", node.cuda_version},
                      {"nvlinks", gpu.nvlinks},
                      {"memory_bytes", gpu.memory_bytes}};
  if (gpu.sm_clock_max_mhz) document["node"]["sm_clock_max_mhz"] = *gpu.sm_clock_max_mhz;
  document["ranks"] = ranks;
  return {};
}

void add_bench(CLI::App& app, Session& session) {
  CLI::App* const bench =
      app.add_subcommand("bench", "Time a layer on GPUs, with its baselines in the same run");
  bench->require_subcommand(1);
  add_bench_moe(*bench, session);
  auto options = std::make_shared<BenchOptions>();
  CLI::App* const ulysses =
      bench->add_subcommand("ulysses", "Attention, its exchanges, and both fused");
  ulysses->add_flag("--json", session.console.json, "One JSON document on stdout");
  add_attention_layer_options(*ulysses, options->layer);
  ulysses->add_option("--backend", options->backend, "cuda")->capture_default_str();
  ulysses->add_option("--table", options->table,
                      "Many layers, one row each: paper (4, 12 and 20 local heads), models");
  ulysses->add_option("--order", options->order, "Order of tiles: remote-first or row-major")
      ->capture_default_str();
  ulysses
      ->add_option("--rounds", options->rounds,
                   "Times each sequence is measured (0: as many as take 1.6 s, 21 to 81)")
      ->capture_default_str();
  ulysses->add_flag("--predict", options->predict, "Only what the plan expects; needs no GPU");
  ulysses->add_option("--fit", options->fit,
                      "Measured documents of two ranks (several times, with one of "
                      "bench/ulysses_torch.py): fit what predictions rest on; needs no GPU");
  ulysses->add_option("--out", options->out, "File for the JSON document");
  ulysses->add_option("--spans", options->spans,
                      "File for the tile stores of one fused launch (of the last layer); "
                      "plan ulysses --from-spans audits it");
  ulysses->callback([ulysses, options, &session] {
    if (!options->table.empty())
      refuse_idle(*ulysses, "with --table, which has its own layers",
                  {"--shape", "--batch", "--seq", "--heads", "--heads-local", "--kv-heads",
                   "--head-dim", "--replicate-kv-heads"});
    if (!options->fit.empty())
      refuse_idle_but(*ulysses, "with --fit, which reads what was measured", {"--fit", "--out"});
    if (options->predict)
      refuse_idle(*ulysses, "with --predict", {"--rounds", "--order", "--spans", "--backend"});
    session.action = [options, &session] { return Bench(session, *options)(); };
  });
}

}  // namespace xstage::cli
