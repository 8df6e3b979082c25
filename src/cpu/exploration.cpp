#include "cpu/exploration.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "cpu/explorer.hpp"
#include "cpu/moe_group.hpp"
#include "cpu/ulysses_data.hpp"
#include "cpu/wait_report.hpp"

namespace xstage::cpu {
namespace {

constexpr std::uint64_t kMostSteps = 400000;  // a run takes some ten thousand

/// The buffers of all ranks, poisoned but for what signals need to be zero.
struct Buffers {
  std::vector<std::vector<std::uint64_t>> symmetric, workspaces;
  std::vector<void*> bases;

  Buffers(std::int32_t ranks, std::int64_t symmetric_bytes, std::int64_t workspace_bytes) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      symmetric.emplace_back(static_cast<std::size_t>(symmetric_bytes / 8), 0);
      workspaces.emplace_back(static_cast<std::size_t>(workspace_bytes / 8), 0);
      bases.push_back(symmetric.back().data());
    }
  }
};

/// Name of an area of one rank's buffer.
void name_region(Explorer& explorer, std::int32_t rank, void* base, const layout::Region& region,
                 const char* name) {
  explorer.name_memory(static_cast<char*>(base) + region.offset, region.bytes,
                       fmt::format("{} of rank {}", name, rank));
}

/// Runs `launches` launches of all workers; `work(launch, context)` is one worker's part.
template <class Work>
Exploration explore(Explorer& explorer, std::int32_t ranks, std::int32_t workers, int launches,
                    const std::vector<std::uint64_t*>& stop_words, Work&& work) {
  std::vector<sync::WaitRecord> records(static_cast<std::size_t>(ranks * workers));
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    for (std::int32_t worker = 0; worker < workers; ++worker)
      explorer.add_worker(rank, [&, rank, worker] {
        sync::WaitContext context;
        context.stop_words = stop_words.data();
        context.ranks = ranks;
        context.rank = rank;
        context.worker = worker;
        context.limit_ns = std::numeric_limits<std::uint64_t>::max();
        context.record = &records[static_cast<std::size_t>(std::int64_t{rank} * workers + worker)];
        for (int launch = 0; launch < launches; ++launch) {
          if (!work(launch, context)) return;
          explorer.end_of_launch();
        }
      });
  Exploration out;
  out.good = explorer.run(kMostSteps, [&] {
    for (std::uint64_t* word : stop_words) *word = sync::stop_value(0, sync::Site::kNone);
  });
  out.steps = explorer.steps();
  if (!out.good) out.what = "nobody can go on: ";
  for (const sync::WaitRecord& record : records)
    if (record.end != sync::WaitEnd::kNone) {
      out.good = false;
      out.what += describe(record) + "; ";
    }
  return out;
}

// --- MoE ---------------------------------------------------------------------------------------

constexpr int kLaunches = 4;

/// A configuration with the inputs of its launches and the right outputs, made once.
struct MoeScene {
  layout::MoeConfig config;
  MoeWeights weights;
  std::vector<std::vector<MoeInput>> inputs;                      // of each launch
  std::vector<std::vector<std::vector<std::uint16_t>>> expected;  // of each launch and rank

  explicit MoeScene(std::int32_t ranks) {
    config.ranks = ranks;
    config.topk = 2;
    config.experts = ranks * 2;
    config.hidden = 128;
    config.intermediate = 128;
    config.capacity = 5;
    config.block_m = 4;
    config.workers = 2;
    weights =
        MoeWeights::random(config.format, config.experts, config.hidden, config.intermediate, 7)
            .value();
    for (int launch = 0; launch < kLaunches; ++launch) {
      const auto routing = shapes::make_routing({}, {config.experts, config.topk, ranks, 5,
                                                     10u + static_cast<unsigned>(launch)})
                               .value();
      auto in = random_inputs(routing, config.hidden, 20u + static_cast<unsigned>(launch));
      // A rank whose tokens stay at home waits for nobody's results and runs ahead.
      for (std::size_t i = 0; launch != 1 && i < in[0].experts.size(); ++i)
        in[0].experts[i] = static_cast<std::int32_t>(i % 2);
      if (launch == 2) in[1] = {};
      inputs.push_back(std::move(in));
    }
    auto group =
        MoeGroup::create(std::vector<layout::MoeConfig>(static_cast<std::size_t>(ranks), config))
            .value();
    for (const auto& in : inputs) expected.push_back(group.launch(weights, in).value());
  }
};

template <sync::Fault kFault>
Exploration explore_moe_with(std::uint64_t seed) {
  static std::map<std::int32_t, std::unique_ptr<MoeScene>> scenes;
  shapes::Random random(seed, 5);
  const auto ranks = static_cast<std::int32_t>(2 + random.below(2));
  auto& scene = scenes[ranks];
  if (!scene) scene = std::make_unique<MoeScene>(ranks);
  layout::MoeConfig config = scene->config;
  config.schedule = random.below(2)
                        ? schedule::MoeSchedule::interleaved(1 + random.below(3))
                        : schedule::MoeSchedule::wave(1 + static_cast<int>(random.below(2)));
  config.dispatch = random.below(2) ? layout::MoeDispatch::kPerRank : layout::MoeDispatch::kPerSlot;
  config.workers = static_cast<std::int32_t>(1 + random.below(3));
  const layout::MoeLayout layout = layout::MoeLayout::make(config);
  Buffers buffers(ranks, layout.symmetric_bytes, layout.workspace_bytes);
  Explorer explorer(seed);
  std::vector<std::uint64_t*> stop_words;
  std::vector<std::vector<MoeLaunch>> launches(kLaunches);
  std::vector<std::vector<std::vector<std::uint16_t>>> outputs(kLaunches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    void* const base = buffers.bases[index];
    void* const own = buffers.workspaces[index].data();
    stop_words.push_back(layout.stop_word(base));
    const std::pair<const char*, const layout::Region*> symmetric[] = {
        {"stop", &layout.stop},      {"ready", &layout.ready},
        {"landed", &layout.landed},  {"arrived", &layout.arrived},
        {"counts", &layout.counts},  {"entries", &layout.entries},
        {"tokens", &layout.tokens},  {"scales", &layout.token_scales},
        {"combine", &layout.combine}};
    for (const auto& [name, region] : symmetric) name_region(explorer, rank, base, *region, name);
    const std::pair<const char*, const layout::Region*> workspace[] = {
        {"control", &layout.control},
        {"dispatched", &layout.dispatched},
        {"linear1", &layout.linear1},
        {"pool", &layout.pool},
        {"pool scales", &layout.pool_scales},
        {"origins", &layout.origins},
        {"intermediate", &layout.intermediate},
        {"intermediate scales", &layout.intermediate_scales}};
    for (const auto& [name, region] : workspace) name_region(explorer, rank, own, *region, name);
    for (std::size_t launch = 0; launch < kLaunches; ++launch) {
      const MoeInput& input = scene->inputs[launch][index];
      outputs[launch].emplace_back(static_cast<std::size_t>(input.tokens * config.hidden), 0);
      MoeLaunch l;
      l.layout = &layout;
      l.symmetric = buffers.bases.data();
      l.workspace = own;
      l.weights = &scene->weights;
      l.input = &input;
      l.output = outputs[launch].back().data();
      launches[launch].push_back(l);
    }
  }
  ExplorerMemory<kFault> memory(explorer);
  Exploration out = explore(explorer, ranks, config.workers, kLaunches, stop_words,
                            [&](int launch, const sync::WaitContext& context) {
                              return MoeWorker<ExplorerMemory<kFault>>(
                                         memory,
                                         launches[static_cast<std::size_t>(launch)]
                                                 [static_cast<std::size_t>(context.rank)],
                                         context)
                                  .run();
                            });
  for (std::size_t launch = 0; out.good && launch < kLaunches; ++launch)
    if (outputs[launch] != scene->expected[launch]) {
      out.good = false;
      out.what = fmt::format("launch {} gave wrong bits", launch + 1);
    }
  if (!out.good) out.trace = explorer.trace();
  return out;
}

// --- Ulysses -----------------------------------------------------------------------------------

struct UlyssesScene {
  layout::UlyssesConfig config;
  std::vector<UlyssesData> data;                                  // of each launch
  std::vector<std::vector<std::vector<std::uint16_t>>> expected;  // of each launch and rank

  explicit UlyssesScene(std::int32_t ranks) {
    config.ranks = ranks;
    config.heads = config.kv_heads = 4;
    config.head_dim = 8;
    config.rows = config.key_rows = 14;
    config.block_m = 4;
    config.block_n = 8;
    config.workers = 2;
    const auto segments = layout::sharded_with_text({3, layout::TextRows::kBeforeOnAll}, 11, ranks);
    layout::set_segments(config, segments);
    layout::set_key_segments(config, segments);
    auto group = UlyssesGroup::create(
                     std::vector<layout::UlyssesConfig>(static_cast<std::size_t>(ranks), config))
                     .value();
    for (std::uint64_t launch = 0; launch < kLaunches; ++launch) {
      data.push_back(UlyssesData::random(config, 30 + launch));
      std::vector<std::vector<std::uint16_t>> bits;
      auto outputs = group.launch(data.back().inputs).value();
      for (auto& output : outputs) bits.push_back(std::move(output.output));
      expected.push_back(std::move(bits));
    }
  }
};

template <sync::Fault kFault>
Exploration explore_ulysses_with(std::uint64_t seed) {
  static std::map<std::int32_t, std::unique_ptr<UlyssesScene>> scenes;
  shapes::Random random(seed, 6);
  const auto ranks = static_cast<std::int32_t>(2 + random.below(2));
  auto& scene = scenes[ranks];
  if (!scene) scene = std::make_unique<UlyssesScene>(ranks);
  layout::UlyssesConfig config = scene->config;
  config.order = random.below(2) ? schedule::UlyssesOrderKind::kRemoteFirst
                                 : schedule::UlyssesOrderKind::kRowMajor;
  config.workers = static_cast<std::int32_t>(1 + random.below(3));
  const layout::UlyssesLayout layout = layout::UlyssesLayout::make(config);
  Buffers buffers(ranks, layout.symmetric_bytes, layout.workspace_bytes);
  Explorer explorer(seed);
  const std::vector<std::int64_t> key_length = {config.key_rows};
  std::vector<std::uint64_t*> stop_words;
  std::vector<std::vector<UlyssesLaunch>> launches(kLaunches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    void* const base = buffers.bases[index];
    stop_words.push_back(layout.stop_word(base));
    const std::pair<const char*, const layout::Region*> regions[] = {
        {"stop", &layout.stop},    {"exchanged", &layout.exchanged},
        {"query", &layout.query},  {"output arrived", &layout.output_arrived},
        {"key", &layout.key},      {"value", &layout.value},
        {"output", &layout.output}};
    for (const auto& [name, region] : regions) name_region(explorer, rank, base, *region, name);
    name_region(explorer, rank, buffers.workspaces[index].data(), layout.control, "control");
    for (std::size_t launch = 0; launch < kLaunches; ++launch) {
      UlyssesLaunch l;
      l.layout = &layout;
      l.symmetric = buffers.bases.data();
      l.workspace = buffers.workspaces[index].data();
      l.query = scene->data[launch].inputs[index].query;
      l.key = scene->data[launch].inputs[index].key;
      l.value = scene->data[launch].inputs[index].value;
      l.key_length = key_length.data();
      launches[launch].push_back(l);
    }
  }
  // The consumer of a launch's output: copies the slot before the rank's next launch begins, one
  // worker a rank, value by value.
  std::vector<std::vector<std::vector<std::uint16_t>>> outputs(
      kLaunches, std::vector<std::vector<std::uint16_t>>(static_cast<std::size_t>(ranks)));
  ExplorerMemory<kFault> memory(explorer);
  Exploration out =
      explore(explorer, ranks, config.workers, kLaunches, stop_words,
              [&](int launch, const sync::WaitContext& context) {
                const auto rank = static_cast<std::size_t>(context.rank);
                UlyssesWorker<ExplorerMemory<kFault>> worker(
                    memory, launches[static_cast<std::size_t>(launch)][rank], context);
                if (!worker.run()) return false;
                if (context.worker != 0) return true;
                const std::int64_t rows =
                    layout::rows_received(config.segments, config.segment_count, context.rank);
                auto& output = outputs[static_cast<std::size_t>(launch)][rank];
                output.resize(static_cast<std::size_t>(rows * config.heads * config.head_dim));
                const std::uint16_t* const from =
                    layout.output_row(buffers.bases[rank], worker.output_slot(), rows, 0, 0, 0);
                for (std::size_t at = 0; at < output.size(); at += 8)
                  memory.load(output.data() + at, from + at, 16);
                return true;
              });
  for (std::size_t launch = 0; out.good && launch < kLaunches; ++launch)
    if (outputs[launch] != scene->expected[launch]) {
      out.good = false;
      out.what = fmt::format("launch {} gave wrong bits", launch + 1);
    }
  if (!out.good) out.trace = explorer.trace();
  return out;
}

template <template <sync::Fault> class Run>
Exploration with_fault(std::uint64_t seed, sync::Fault fault) {
  using sync::Fault;
  switch (fault) {
    case Fault::kNone: return Run<Fault::kNone>()(seed);
    case Fault::kMissingRelease: return Run<Fault::kMissingRelease>()(seed);
    case Fault::kEarlySlotReuse: return Run<Fault::kEarlySlotReuse>()(seed);
    case Fault::kLostEpoch: return Run<Fault::kLostEpoch>()(seed);
    case Fault::kWrongCount: return Run<Fault::kWrongCount>()(seed);
    case Fault::kFlagBeforeData: return Run<Fault::kFlagBeforeData>()(seed);
  }
  return {};
}

template <sync::Fault kFault>
struct RunMoe {
  Exploration operator()(std::uint64_t seed) const { return explore_moe_with<kFault>(seed); }
};
template <sync::Fault kFault>
struct RunUlysses {
  Exploration operator()(std::uint64_t seed) const { return explore_ulysses_with<kFault>(seed); }
};

}  // namespace

Exploration explore_moe(std::uint64_t seed, sync::Fault fault) {
  return with_fault<RunMoe>(seed, fault);
}

Exploration explore_ulysses(std::uint64_t seed, sync::Fault fault) {
  return with_fault<RunUlysses>(seed, fault);
}

}  // namespace xstage::cpu
