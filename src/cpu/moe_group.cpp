#include "cpu/moe_group.hpp"

#include <fmt/format.h>

#include <cstring>

#include "cpu/host_memory.hpp"

namespace xstage::cpu {
namespace {

Result<bool> check_weights(const layout::MoeConfig& config, const MoeWeights& weights) {
  if (weights.format != config.format || weights.experts != config.experts ||
      weights.hidden != config.hidden || weights.intermediate != config.intermediate)
    return bad_input("the weights are of another layer", "weights",
                     fmt::format("{} experts, hidden {}, intermediate {}", weights.experts,
                                 weights.hidden, weights.intermediate),
                     fmt::format("{} experts, hidden {}, intermediate {}, same format",
                                 config.experts, config.hidden, config.intermediate));
  return true;
}

Result<bool> check_input(const layout::MoeConfig& config, const MoeInput& input, std::size_t rank) {
  const auto field = [&](const char* name) { return fmt::format("rank {} {}", rank, name); };
  if (input.tokens < 0 || input.tokens > config.capacity)
    return bad_input("a rank brings more tokens than the capacity", field("tokens"),
                     fmt::format("{}", input.tokens), fmt::format("0 to {}", config.capacity));
  const auto pairs = static_cast<std::size_t>(input.tokens * config.topk);
  const auto values = static_cast<std::size_t>(input.tokens * config.hidden);
  const std::pair<const char*, std::pair<std::size_t, std::size_t>> sizes[] = {
      {"x", {input.x.size(), values}},
      {"experts", {input.experts.size(), pairs}},
      {"weights", {input.weights.size(), pairs}},
      {"addend", {input.addend.empty() ? values : input.addend.size(), values}}};
  for (const auto& [name, size] : sizes)
    if (size.first != size.second)
      return bad_input("an input has the wrong size", field(name), fmt::format("{}", size.first),
                       fmt::format("{} values", size.second));
  for (std::size_t pair = 0; pair < pairs; ++pair)
    if (input.experts[pair] < -1 || input.experts[pair] >= config.experts)
      return bad_input("an expert id is out of range",
                       fmt::format("rank {} token {} slot {}", rank,
                                   pair / static_cast<std::size_t>(config.topk),
                                   pair % static_cast<std::size_t>(config.topk)),
                       fmt::format("{}", input.experts[pair]),
                       fmt::format("-1 to {}", config.experts - 1));
  return true;
}

}  // namespace

Result<MoeGroup> MoeGroup::create(const std::vector<layout::MoeConfig>& of_rank) {
  const auto config = layout::agreed(of_rank);
  if (!config) return config.error();
  const auto layout = layout::checked(*config);
  if (!layout) return layout.error();
  if (static_cast<std::size_t>(config->ranks) != of_rank.size())
    return bad_input("not every rank has a configuration", "ranks",
                     fmt::format("{}", config->ranks), fmt::format("{}", of_rank.size()));
  MoeGroup out;
  out.layout_ = *layout;
  auto group = Group::create(config->ranks, config->workers, layout->symmetric_bytes,
                             layout->workspace_bytes);
  if (!group) return group.error();
  out.group_ = std::move(*group);
  return out;
}

Result<std::vector<std::vector<std::uint16_t>>> MoeGroup::launch(
    const MoeWeights& weights, const std::vector<MoeInput>& inputs,
    const MoeLaunchOptions& options) {
  const layout::MoeConfig& config = layout_.config;
  if (auto ok = check_weights(config, weights); !ok) return ok.error();
  if (inputs.size() != static_cast<std::size_t>(config.ranks))
    return bad_input("not every rank has an input", "inputs", fmt::format("{}", inputs.size()),
                     fmt::format("{}", config.ranks));
  std::int64_t pairs = 0;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    if (auto ok = check_input(config, inputs[rank], rank); !ok) return ok.error();
    pairs += inputs[rank].tokens * config.topk;
  }
  std::vector<std::vector<std::uint16_t>> outputs(inputs.size());
  std::vector<MoeLaunch> launches(inputs.size());
  std::vector<std::uint64_t*> stop_words;
  linear1_.assign(inputs.size(), {});
  // Rows of a launch are bounded by its own pairs, not by the capacity.
  const std::int64_t rows = schedule::max_rows(pairs, layout_.experts_local, config.block_m);
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    outputs[rank].assign(static_cast<std::size_t>(inputs[rank].tokens * config.hidden), 0);
    if (options.keep_linear1)
      linear1_[rank].assign(static_cast<std::size_t>(rows * config.block_m * config.intermediate),
                            0);
    MoeLaunch& launch = launches[rank];
    launch.layout = &layout_;
    launch.symmetric = group_.symmetric();
    launch.workspace = group_.workspace(static_cast<std::int32_t>(rank));
    launch.weights = &weights;
    launch.input = &inputs[rank];
    launch.output = outputs[rank].data();
    launch.linear1 = options.keep_linear1 ? linear1_[rank].data() : nullptr;
    if (static_cast<int>(rank) == options.stopped_rank) launch.stop_before = options.stop_before;
    stop_words.push_back(layout_.stop_word(group_.symmetric()[rank]));
  }
  const auto done = group_.launch(stop_words, options, [&](const sync::WaitContext& context) {
    HostMemory memory;
    return MoeWorker<HostMemory>(memory, launches[static_cast<std::size_t>(context.rank)], context)
        .run();
  });
  if (!done) return done.error();
  return outputs;
}

MoeGroup::Middle MoeGroup::middle(const std::vector<MoeInput>& inputs) const {
  const layout::MoeConfig& config = layout_.config;
  Middle out;
  for (const MoeInput& input : inputs) {
    const auto values = static_cast<std::size_t>(input.tokens * config.topk * config.intermediate);
    out.linear1.emplace_back(values, 0.0f);
    out.quantised.emplace_back(values, 0.0f);
  }
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    // The rows of each expert lie behind each other; in them, what comes here by source, then pair.
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> sent(
        static_cast<std::size_t>(layout_.experts_local));
    for (std::size_t source = 0; source < inputs.size(); ++source)
      for (std::size_t pair = 0; pair < inputs[source].experts.size(); ++pair) {
        const std::int32_t expert = inputs[source].experts[pair];
        if (expert >= 0 && expert / layout_.experts_local == rank)
          sent[static_cast<std::size_t>(expert % layout_.experts_local)].emplace_back(source, pair);
      }
    void* const base = group_.workspace(rank);
    std::int64_t row = 0;
    for (const auto& of_expert : sent) {
      const auto count = static_cast<std::int64_t>(of_expert.size());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t place = row * config.block_m + i;
        const auto [source, pair] = of_expert[static_cast<std::size_t>(i)];
        const std::int64_t to = static_cast<std::int64_t>(pair) * config.intermediate;
        if (!linear1_[static_cast<std::size_t>(rank)].empty())
          std::copy_n(linear1_[static_cast<std::size_t>(rank)].data() + place * config.intermediate,
                      config.intermediate, out.linear1[source].data() + to);
        const char* const raw = layout_.intermediate_token(base, place);
        for (std::int64_t j = 0; j < config.intermediate; ++j) {
          float& value = out.quantised[source][static_cast<std::size_t>(to + j)];
          if (config.format == WeightFormat::kBf16) {
            std::uint16_t bits;
            std::memcpy(&bits, raw + 2 * j, 2);
            value = bf16_to_float(bits);
          } else {
            value = e4m3_to_float(static_cast<std::uint8_t>(raw[j])) *
                    layout_.intermediate_scales_of(
                        base, place / config.block_m,
                        j / layout_.intermediate_group)[place % config.block_m];
          }
        }
      }
      row += (count + config.block_m - 1) / config.block_m;
    }
  }
  return out;
}

void MoeGroup::poison() {
  for (std::int32_t rank = 0; rank < layout_.config.ranks; ++rank) {
    const auto fill = [](void* base, const layout::Region& region) {
      std::memset(static_cast<char*>(base) + region.offset, 0xff,
                  static_cast<std::size_t>(region.bytes));
    };
    void* const symmetric = group_.symmetric()[rank];
    for (const layout::Region& region :
         {layout_.counts, layout_.entries, layout_.tokens, layout_.token_scales, layout_.combine})
      fill(symmetric, region);
    for (const layout::Region& region : {layout_.pool, layout_.pool_scales, layout_.origins,
                                         layout_.intermediate, layout_.intermediate_scales})
      fill(group_.workspace(rank), region);
  }
}

}  // namespace xstage::cpu
