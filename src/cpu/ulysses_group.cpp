#include "cpu/ulysses_group.hpp"

#include <fmt/format.h>

#include <cstring>

#include "cpu/host_memory.hpp"

namespace xstage::cpu {

Result<UlyssesGroup> UlyssesGroup::create(const std::vector<layout::UlyssesConfig>& of_rank) {
  const auto config = layout::agreed(of_rank);
  if (!config) return config.error();
  const auto layout = layout::checked(*config);
  if (!layout) return layout.error();
  if (static_cast<std::size_t>(config->ranks) != of_rank.size())
    return bad_input("not every rank has a configuration", "ranks",
                     fmt::format("{}", config->ranks), fmt::format("{}", of_rank.size()));
  UlyssesGroup out;
  out.layout_ = *layout;
  auto group = Group::create(config->ranks, config->workers, layout->symmetric_bytes,
                             layout->workspace_bytes);
  if (!group) return group.error();
  out.group_ = std::move(*group);
  return out;
}

layout::TensorView UlyssesGroup::wanted_query(std::int32_t rank) const {
  const layout::UlyssesConfig& c = layout_.config;
  return layout::TensorView::contiguous(nullptr, layout::ScalarType::kBf16, c.batch,
                                        layout::rows_received(c.segments, c.segment_count, rank),
                                        c.heads, c.head_dim);
}

layout::TensorView UlyssesGroup::wanted_key(std::int32_t rank) const {
  const layout::UlyssesConfig& c = layout_.config;
  const std::int64_t rows = c.keys_replicated
                                ? c.key_rows
                                : layout::rows_received(c.key_segments, c.key_segment_count, rank);
  return layout::TensorView::contiguous(nullptr, layout::ScalarType::kBf16, c.batch, rows,
                                        c.kv_heads, c.head_dim);
}

Result<std::vector<UlyssesOutput>> UlyssesGroup::launch(const std::vector<UlyssesInput>& inputs,
                                                        const std::vector<std::int64_t>& key_length,
                                                        const UlyssesLaunchOptions& options) {
  const layout::UlyssesConfig& config = layout_.config;
  if (inputs.size() != static_cast<std::size_t>(config.ranks))
    return bad_input("not every rank has an input", "inputs", fmt::format("{}", inputs.size()),
                     fmt::format("{}", config.ranks));
  std::vector<std::int64_t> lengths = key_length;
  if (lengths.empty()) lengths.assign(static_cast<std::size_t>(config.batch), config.key_rows);
  if (lengths.size() != static_cast<std::size_t>(config.batch))
    return bad_input("not every batch entry has a key length", "key_length",
                     fmt::format("{} lengths", lengths.size()), fmt::format("{}", config.batch));
  for (std::size_t b = 0; b < lengths.size(); ++b)
    if (lengths[b] < 0 || lengths[b] > config.key_rows)
      return bad_input("a key length is out of range", fmt::format("key_length[{}]", b),
                       fmt::format("{}", lengths[b]), fmt::format("0 to {}", config.key_rows));
  std::vector<UlyssesOutput> outputs(inputs.size());
  std::vector<UlyssesLaunch> launches(inputs.size());
  std::vector<std::uint64_t*> stop_words;
  std::vector<std::int32_t> slots(inputs.size(), 0);
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const std::string prefix = fmt::format("rank {} ", rank);
    for (const auto& [name, view, wanted] :
         {std::tuple{"query", &inputs[index].query, wanted_query(rank)},
          std::tuple{"key", &inputs[index].key, wanted_key(rank)},
          std::tuple{"value", &inputs[index].value, wanted_key(rank)}})
      if (auto ok = layout::check_view((prefix + name).c_str(), *view, wanted); !ok)
        return ok.error();
    const layout::HeadShare heads =
        layout::heads_of(config.heads, config.kv_heads, config.ranks, rank);
    const auto computed = static_cast<std::size_t>(config.batch * heads.query.count * config.rows);
    outputs[index].local.resize(computed * static_cast<std::size_t>(config.head_dim));
    outputs[index].log_sum_exp.resize(computed);
    UlyssesLaunch& launch = launches[index];
    launch.layout = &layout_;
    launch.symmetric = group_.symmetric();
    launch.workspace = group_.workspace(rank);
    launch.query = inputs[index].query;
    launch.key = inputs[index].key;
    launch.value = inputs[index].value;
    launch.key_length = lengths.data();
    launch.local = outputs[index].local.data();
    launch.log_sum_exp = outputs[index].log_sum_exp.data();
    if (rank == options.stopped_rank) launch.stop_before = options.stop_before;
    stop_words.push_back(layout_.stop_word(group_.symmetric()[rank]));
  }
  const auto done = group_.launch(stop_words, options, [&](const sync::WaitContext& context) {
    HostMemory memory;
    const auto index = static_cast<std::size_t>(context.rank);
    UlyssesWorker<HostMemory> worker(memory, launches[index], context);
    const bool ok = worker.run();
    if (context.worker == 0) slots[index] = worker.output_slot();
    return ok;
  });
  if (!done) return done.error();
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const std::int64_t rows = layout::rows_received(config.segments, config.segment_count, rank);
    const std::uint16_t* const first =
        layout_.output_row(group_.symmetric()[rank], slots[index], rows, 0, 0, 0);
    outputs[index].output.assign(first,
                                 first + config.batch * rows * config.heads * config.head_dim);
  }
  return outputs;
}

void UlyssesGroup::poison() {
  for (std::int32_t rank = 0; rank < layout_.config.ranks; ++rank)
    for (const layout::Region& region : {layout_.query, layout_.key, layout_.value, layout_.output})
      std::memset(static_cast<char*>(group_.symmetric()[rank]) + region.offset, 0xff,
                  static_cast<std::size_t>(region.bytes));
}

}  // namespace xstage::cpu
