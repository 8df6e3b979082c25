#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/layer_options.hpp"
#include "cli/provenance.hpp"
#include "cli/run.hpp"
#include "cli/typed_options.hpp"
#include "cpu/ulysses_data.hpp"
#include "cuda/ulysses/group.hpp"

namespace xstage::cli {
namespace {

struct RunUlyssesOptions {
  AttentionLayerOptions layer;
  RunOptions run;
  std::string order = "all";
  std::string output_order = "rows-heads";
  std::int64_t text = 0;
  std::string text_place = "before";
  std::optional<std::int64_t> key_seq;
  std::vector<std::int64_t> key_length;
  bool replicated_keys = false;
  int ring = 1;
  double scale = 0;
  int block_m = 64;
  std::int64_t check_every = 0;
  int stop_rank = -1;
  std::string stop_before = "attention";
};

Result<layout::Text> text_of(const RunUlyssesOptions& options, std::int64_t rows) {
  const std::pair<const char*, layout::TextRows> places[] = {
      {"before", layout::TextRows::kBefore},
      {"after", layout::TextRows::kAfter},
      {"before-on-all", layout::TextRows::kBeforeOnAll},
      {"after-on-all", layout::TextRows::kAfterOnAll}};
  if (options.text < 0 || options.text >= rows)
    return bad_input("the text does not fit into the sequence", "--text",
                     fmt::format("{}", options.text), fmt::format("0 to {}", rows - 1));
  for (const auto& [name, place] : places)
    if (options.text_place == name)
      return layout::Text{options.text, options.text ? place : layout::TextRows::kNone};
  return bad_input("no such place for the text", "--text-place", options.text_place,
                   "before, after, before-on-all, after-on-all");
}

Result<layout::UlyssesConfig> config_of(const RunUlyssesOptions& options,
                                        const AttentionLayer& layer) {
  layout::UlyssesConfig c = config_of(layer);
  c.ring = options.ring;
  c.key_rows = options.key_seq.value_or(layer.seq);
  c.keys_replicated = options.replicated_keys;
  c.scale = static_cast<float>(options.scale);
  c.block_m = options.block_m;
  c.block_n = options.block_m;
  c.workers = options.run.workers;
  if (options.output_order != "rows-heads" && options.output_order != "heads-rows")
    return bad_input("no such order of the output", "--output-order", options.output_order,
                     "rows-heads, heads-rows");
  c.output_order = options.output_order == "heads-rows" ? layout::OutputOrder::kHeadsRows
                                                        : layout::OutputOrder::kRowsHeads;
  const auto text = text_of(options, layer.seq);
  if (!text) return text.error();
  const auto segments = layout::sharded_with_text(*text, layer.seq - text->rows, layer.ranks);
  layout::set_segments(c, segments);
  if (options.replicated_keys) {
    layout::set_key_segments(c, {});
  } else {
    if (c.key_rows < 1)
      return bad_input("there are no keys", "--key-seq", fmt::format("{}", c.key_rows),
                       "at least 1");
    layout::set_key_segments(
        c, c.key_rows == c.rows ? segments : layout::sharded(c.key_rows, layer.ranks));
  }
  const auto valid = layout::checked(c);
  if (!valid) return valid.error();
  return c;
}

Result<std::vector<schedule::UlyssesOrderKind>> orders_of(const RunUlyssesOptions& options) {
  using schedule::UlyssesOrderKind;
  if (options.order == "remote-first")
    return std::vector<UlyssesOrderKind>{UlyssesOrderKind::kRemoteFirst};
  if (options.order == "row-major")
    return std::vector<UlyssesOrderKind>{UlyssesOrderKind::kRowMajor};
  if (options.order == "all")
    return std::vector<UlyssesOrderKind>{UlyssesOrderKind::kRemoteFirst,
                                         UlyssesOrderKind::kRowMajor};
  return bad_input("no such order", "--order", options.order, "remote-first, row-major, all");
}

/// One group of ranks, whatever it runs on.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Result<std::vector<cpu::UlyssesOutput>> launch(const cpu::UlyssesData& data) = 0;
  virtual const std::vector<sync::WaitRecord>& waits() const = 0;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(cpu::UlyssesGroup group, const RunUlyssesOptions& options)
      : group_(std::move(group)), options_(options) {
    set_limits(launch_, options.run);
    launch_.stopped_rank = options.stop_rank;
    launch_.stop_before = options.stop_before == "exchange" ? cpu::UlyssesStep::kExchange
                                                            : cpu::UlyssesStep::kAttention;
  }
  Result<std::vector<cpu::UlyssesOutput>> launch(const cpu::UlyssesData& data) override {
    return group_.launch(data.inputs, options_.key_length, launch_);
  }
  const std::vector<sync::WaitRecord>& waits() const override { return group_.waits(); }

 private:
  cpu::UlyssesGroup group_;
  const RunUlyssesOptions& options_;
  cpu::UlyssesLaunchOptions launch_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<ulysses::Group> group, const RunUlyssesOptions& options)
      : group_(std::move(group)), options_(options) {}

  Result<std::vector<cpu::UlyssesOutput>> launch(const cpu::UlyssesData& data) override {
    std::vector<ulysses::RankInput> inputs;
    for (const cpu::UlyssesInput& in : data.inputs) inputs.push_back({in.query, in.key, in.value});
    if (const auto set = group_->set_inputs(inputs, options_.key_length); !set) return set.error();
    auto got = group_->run();
    if (!got) return got.error();
    std::vector<cpu::UlyssesOutput> out;
    for (ulysses::RankOutput& rank : *got)
      out.push_back({std::move(rank.output), std::move(rank.local), std::move(rank.log_sum_exp)});
    return out;
  }
  const std::vector<sync::WaitRecord>& waits() const override { return group_->waits(); }

 private:
  std::unique_ptr<ulysses::Group> group_;
  const RunUlyssesOptions& options_;
};

class UlyssesRun {
 public:
  UlyssesRun(const Session& session, const RunUlyssesOptions& options)
      : session_(session), console_(session.console), options_(options) {}

  int operator()() {
    const AttentionLayer layer = resolve(options_.layer).value();
    document_ = {{"format", "xstage.run/1"},        {"provenance", provenance("run ulysses", {})},
                 {"backend", options_.run.backend}, {"ranks", layer.ranks},
                 {"workers", options_.run.workers}, {"schedules", nlohmann::json::array()}};
    document_["layer"] = to_json(layer);
    document_["layer"]["kind"] = "ulysses";
    const auto orders = orders_of(options_).value();
    if (!(options_.scale == 0 || (options_.scale >= 1e-6 && options_.scale <= 1e2)))
      return console_.fail(
          bad_input("the scale of the logits is not allowed", "--scale",
                    fmt::format("{:g}", options_.scale), "0 (1/sqrt(head size)), or 1e-6 to 100"),
          document_);
    layout::UlyssesConfig config = config_of(options_, layer).value();
    if (auto error = check(options_.run, layer.ranks, true))
      return console_.fail(*error, document_);
    if (auto error = check_rows(options_.check_every, options_.stop_rank, layer.ranks))
      return console_.fail(*error, document_);
    if (auto error = check_key_length(config)) return console_.fail(*error, document_);
    nlohmann::json heads = nlohmann::json::array();
    for (std::int32_t rank = 0; rank < config.ranks; ++rank)
      heads.push_back(
          layout::heads_of(config.heads, config.kv_heads, config.ranks, rank).query.count);
    document_["heads_of_rank"] = heads;
    check_memory(config);
    if (auto error =
            check_work(console_, options_.run,
                       work_of(config) * options_.run.runs * static_cast<double>(orders.size())))
      return console_.fail(*error, document_);
    const auto data = cpu::UlyssesData::random(config, layer.seed);
    tell_sharing(console_, options_.run, layer.ranks, document_);
    for (const auto order : orders) {
      config.order = order;
      if (const int code = run_order(config, data); code >= 0) return code;
    }
    return conclude(config, data);
  }

 private:
  std::optional<Error> check_key_length(const layout::UlyssesConfig& c) const {
    const std::vector<std::int64_t>& lengths = options_.key_length;
    if (!lengths.empty() && static_cast<std::int64_t>(lengths.size()) != c.batch)
      return bad_input("not every batch entry has a key length", "--key-length",
                       fmt::format("{} of them", lengths.size()),
                       fmt::format("none, or {} (the batch)", c.batch));
    for (const std::int64_t length : lengths)
      if (length < 0 || length > c.key_rows)
        return bad_input("a key length is out of range", "--key-length", fmt::format("{}", length),
                         fmt::format("0 to {}", c.key_rows));
    return {};
  }

  void check_memory(const layout::UlyssesConfig& c) const {
    // Sequence, shards, two slots of everything, and the outputs, all bf16.
    const double needed = 2.0 * static_cast<double>(c.batch) *
                          static_cast<double>(c.heads * c.head_dim) *
                          static_cast<double>(8 * c.rows + 12 * c.key_rows);
    const auto available = static_cast<double>(available_memory());
    if (needed > 0.9 * available)
      throw Failure({ErrorKind::kBadInput, "this machine's memory cannot hold the layer", "--seq",
                     fmt::format("{:.1f} GB needed", needed * 1e-9),
                     fmt::format("at most {:.1f} GB: a shorter sequence or fewer heads",
                                 0.9e-9 * available)});
  }

  Result<std::unique_ptr<Backend>> backend_of(const layout::UlyssesConfig& config) const {
    if (options_.run.backend == "cuda") {
      const auto limit = static_cast<std::uint64_t>(options_.run.first_wait_limit_ms) * 1000000;
      auto group = ulysses::Group::create(config, limit, options_.run.ranks_per_gpu);
      if (!group) return group.error();
      return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(std::move(*group), options_));
    }
    auto group = cpu::UlyssesGroup::create(
        std::vector<layout::UlyssesConfig>(static_cast<std::size_t>(config.ranks), config));
    if (!group) return group.error();
    return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(std::move(*group), options_));
  }

  /// Returns -1 to go on, else the exit code.
  int run_order(const layout::UlyssesConfig& config, const cpu::UlyssesData& data) {
    auto group = backend_of(config);
    if (!group) return console_.fail(group.error(), document_);
    const bool remote_first = config.order == schedule::UlyssesOrderKind::kRemoteFirst;
    const char* const name = remote_first ? "remote-first" : "row-major";
    double seconds = 0;
    bool same = true;
    std::string digest;
    for (int run = 0; run < options_.run.runs; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      auto outputs = (*group)->launch(data);
      if (!outputs) {
        document_["waits"] = to_json((*group)->waits());
        return console_.fail(outputs.error(), document_);
      }
      const double took =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      seconds = run == 0 ? took : std::min(seconds, took);
      std::vector<std::vector<std::uint16_t>> bits;
      for (auto& output : *outputs) bits.push_back(output.output);
      digest = digest_of(bits);
      if (first_digest_.empty()) first_digest_ = digest;
      same = same && digest == first_digest_;
      outputs_ = std::move(*outputs);
    }
    console_.text(fmt::format("{:<14} {} launches, best {:8.3f} s, bits {} {}", name,
                              options_.run.runs, seconds, digest, same ? "" : "DIFFERENT"));
    document_["schedules"].push_back({{"schedule", name},
                                      {"lead", nullptr},
                                      {"launches", options_.run.runs},
                                      {"seconds", seconds},
                                      {"bits_digest", digest},
                                      {"ok", same}});
    same_bits_ = same_bits_ && same;
    return -1;
  }

  /// Multiply-adds of one launch.
  static double work_of(const layout::UlyssesConfig& c) {
    return 2.0 * static_cast<double>(c.batch) * static_cast<double>(c.heads) *
           static_cast<double>(c.head_dim) * static_cast<double>(c.rows) *
           static_cast<double>(c.key_rows);
  }

  /// The reference costs about 10⁹ multiply-adds a second and core.
  std::int64_t check_step(const layout::UlyssesConfig& c) const {
    if (options_.check_every > 0) return options_.check_every;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(work_of(c) / 2e10), 1, c.rows);
  }

  int conclude(const layout::UlyssesConfig& config, const cpu::UlyssesData& data) {
    document_["same_bits"] = same_bits_;
    bool right = true;
    std::string failed = "two launches of the same layer gave different bits";
    if (!options_.run.no_check) {
      const std::int64_t step = check_step(config);
      console_.log("reference in double precision …");
      const cpu::UlyssesErrors errors =
          cpu::compare_with_reference(data, outputs_, options_.key_length, step);
      right = errors.within_limits();
      const double limit = cpu::UlyssesErrors::kFactor * errors.bf16_error;
      document_["errors"] = {{"relative", errors.error},
                             {"relative_limit", limit},
                             {"of_bf16_attention", errors.bf16_error},
                             {"largest", errors.largest},
                             {"log_sum_exp", errors.log_sum_exp},
                             {"rows_checked", errors.rows_checked},
                             {"row_step", step},
                             {"fused_equals_local", errors.fused_equals_local},
                             {"finite", errors.finite}};
      for (auto& s : document_["schedules"]) {
        s["max_error"] = errors.error;  // the same bits, so the same error
        s["bound"] = limit;
        s["ok"] = s["ok"].get<bool>() && right;
      }
      console_.text(
          fmt::format("relative error against double precision, {} rows: {:.2g}; ordinary bf16 "
                      "attention {:.2g}, limit {:.2g}; every row at its owner as computed: {}",
                      errors.rows_checked, errors.error, errors.bf16_error, limit,
                      errors.fused_equals_local ? "yes" : "NO"));
      if (!right)
        failed = fmt::format("the result is wrong: relative error {:.3g}, allowed {:.3g}",
                             errors.error, limit);
    }
    return finish(session_, options_.run, std::move(document_), right && same_bits_, failed);
  }

  const Session& session_;
  const Console& console_;
  const RunUlyssesOptions& options_;
  nlohmann::json document_;
  std::vector<cpu::UlyssesOutput> outputs_;
  std::string first_digest_;
  bool same_bits_ = true;
};

}  // namespace

void add_run_ulysses(CLI::App& run, Session& session) {
  auto options = std::make_shared<RunUlyssesOptions>();
  CLI::App* const app =
      run.add_subcommand("ulysses", "Ulysses attention with its output All-to-All fused");
  app->add_flag("--json", session.console.json, "One JSON document on stdout");
  add_attention_layer_options(*app, options->layer);
  add_run_options(*app, options->run);
  app->add_option("--order", options->order, "Order of tiles: remote-first, row-major, or all")
      ->capture_default_str();
  app->add_option("--output-order", options->output_order, "rows-heads or heads-rows")
      ->capture_default_str();
  app->add_option("--text", options->text, "How many of the sequence's rows are text")
      ->capture_default_str();
  app->add_option("--text-place", options->text_place,
                  "before, after: sharded like the image; before-on-all, after-on-all: every rank "
                  "has and wants all text rows")
      ->capture_default_str();
  app->add_option("--key-seq", options->key_seq, "Key rows, where they are not the query rows");
  app->add_option("--key-length", options->key_length, "Keys that count, for each batch entry");
  app->add_flag("--replicated-keys", options->replicated_keys,
                "Cross-attention: every rank has all keys");
  app->add_option("--ring", options->ring, "Ring degree; the fused output is right only for 1")
      ->capture_default_str();
  app->add_option("--scale", options->scale, "Scale of the logits (0: 1/sqrt(head size))");
  app->add_option("--block-m", options->block_m, "Rows of a tile")->capture_default_str();
  app->add_option("--check-every", options->check_every,
                  "Compare every n-th row with the reference (0: as many as take half a minute)");
  app->add_option("--stop-rank", options->stop_rank, "Drill: this rank stops answering");
  app->add_option("--stop-before", options->stop_before, "Drill: before exchange or attention")
      ->check(CLI::IsMember({"exchange", "attention"}))
      ->capture_default_str();
  app->callback([app, options, &session] {
    refuse_idle_run_options(*app, options->run);
    // One limit holds for all launches of its kernels.
    if (options->run.backend == "cuda")
      refuse_idle(*app, "with --backend cuda; --first-wait-limit holds for every launch",
                  {"--wait-limit"});
    if (!typed(*app, "--text")) refuse_idle(*app, "without --text", {"--text-place"});
    session.action = [options, &session] { return UlyssesRun(session, *options)(); };
  });
}

}  // namespace xstage::cli
