// The fused MoE layer on one or two GPUs: right against a plain fp32 layer with the same
// quantisation points, the same bits under every schedule, errors that end.
//   moe_fused_device                                  checks
//   moe_fused_device --time LAYER|all [FILE [COMMIT]] times, and writes them as JSON
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "moe_bench.cuh"

namespace xstage::moe_test {
namespace {

void schedules(Bench& b) {
  b.keep();
  for (const MoeDispatch dispatch : {MoeDispatch::kPerRank, MoeDispatch::kPerSlot})
    for (const MoeSchedule& s :
         {MoeSchedule::interleaved(1), MoeSchedule::interleaved(4), MoeSchedule::interleaved(64),
          MoeSchedule::wave(1), MoeSchedule::wave(3)}) {
      must(b.layer().set_schedule(s, dispatch), "schedule");
      b.run();
      b.expect_same((s.kind == schedule::MoeScheduleKind::kWave
                         ? "wave " + std::to_string(s.group)
                         : "lead " + std::to_string(s.lead)) +
                    (dispatch == MoeDispatch::kPerRank ? " per rank" : " per slot"));
    }
}

void bf16_cases(int gpus, std::uint64_t seed) {
  constexpr WeightFormat kBf16 = WeightFormat::kBf16;
  {
    Bench b({"one rank", 1, 512, 256, 4, 2, 100, kBf16}, seed);
    b.balanced({100});
    b.run();
    b.compare(1);
    schedules(b);
  }
  {
    Bench b({"one expert in all", 1, 256, 128, 1, 1, 300, kBf16}, seed + 1, 1.5f);
    b.balanced({300});
    b.run();
    b.compare(1);
  }
  if (gpus < 2) return;
  {
    Bench b({"two ranks, skipped slots", 2, 768, 384, 8, 3, 500, kBf16}, seed + 2);
    b.balanced({437, 160}, 0.3);
    b.run();
    b.compare(1);
    schedules(b);
    b.run(true);
    b.compare(1, true);
    b.balanced({0, 333});
    b.run();
    b.compare(1);
    b.route({500, 500}, [](int, std::int64_t, std::int32_t* ids, std::mt19937_64&) {
      ids[0] = 6, ids[1] = 4, ids[2] = 5;
    });
    b.run();
    b.compare(3);
  }
  {
    Bench b({"deep", 2, 4096, 2048, 8, 2, 300, kBf16}, seed + 3);
    b.balanced({300, 211});
    b.run();
    b.compare(7);
    schedules(b);
  }
}

/// A store warp waits for a tile's result for longer than this limit: a wait gives up, every rank
/// is told who waited for what, and no rank takes the result for good; again and again.
void waits_in_a_block(int gpus, std::uint64_t seed) {
  if (!moe::kWaitLimits) {
    std::printf("       waits inside a block have no limit here (XSTAGE_MOE_WAIT_LIMITS)\n");
    return;
  }
  Sizes z{"limit inside a block", std::min(gpus, 2), 4096, 768, 16, 4, 500};
  z.in_block = std::chrono::nanoseconds(1);
  Bench b(z, seed);
  b.balanced(std::vector<std::int64_t>(static_cast<std::size_t>(z.ranks), z.capacity));
  for (int i = 0; i < 5; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    const auto done = b.try_run();
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
    expect(!done.ok() && ms < 1000, "after %.1f ms",
           done.ok() ? "a wait passed its limit" : done.error().message(), ms);
  }
}

void small_cases(int gpus, std::uint64_t seed) {
  {
    Bench b({"one rank", 1, 512, 256, 4, 2, 100}, seed);
    b.balanced({100});
    b.run();
    b.compare(1);
    schedules(b);
  }
  {
    Bench b({"one expert in all", 1, 256, 128, 1, 1, 300}, seed + 1, 1.5f);
    b.balanced({300});
    b.run();
    b.compare(1);
  }
  if (gpus < 2) return;
  {
    Bench b({"two ranks, skipped slots", 2, 768, 384, 8, 3, 500}, seed + 2);
    b.balanced({437, 160}, 0.3);
    b.run();
    b.compare(1);
    schedules(b);
    b.run(true);
    b.compare(1, true);
    b.balanced({0, 333});
    b.run();
    b.compare(1);
    b.balanced({0, 0});
    b.run();
    b.balanced({20, 1}, 1.0);
    b.run();
    b.compare(1);
    // 1, 63, 64, 65, 127, 128, 129 tokens for an expert, each token twice the same expert.
    b.route({289, 288}, [](int r, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
      const std::int64_t ends[8] = {1, 64, 128, 193, 320, 448, 577, 577};
      const std::int64_t at = r * 289 + t;
      for (std::int32_t e = 7; e >= 0; --e)
        if (at < ends[e]) ids[0] = e;
      ids[1] = -1;
      ids[2] = ids[0];
    });
    b.run();
    b.compare(1);
    b.route({500, 500}, [](int, std::int64_t, std::int32_t* ids, std::mt19937_64&) {
      ids[0] = 6, ids[1] = 4, ids[2] = 5;
    });
    b.run();
    b.compare(3);
    b.route({40, 40}, [](int r, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
      ids[0] = r == 1 && t == 7 ? 8 : 0, ids[1] = 1, ids[2] = 5;
    });
    const auto refused = b.try_run();
    expect(!refused.ok(), "%.0f",
           refused.ok() ? "an id out of range passed" : refused.error().message(), 0);
    b.balanced({300, 200});
    b.run();
    b.compare(1);
    // A stream that is held up: the other rank's wait ends, and the next launch works.
    check(cudaSetDevice(1), "device");
    check(cudaLaunchHostFunc(
              b.streams()[1],
              [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); }, nullptr),
          "host function");
    const auto late = [&] {
      if (auto done = b.layer().launch(b.inputs(), b.streams()); !done) return done;
      return b.layer().finish(b.streams());
    }();
    expect(!late.ok(), "%.0f", late.ok() ? "a stopped stream passed" : late.error().message(), 0);
    b.balanced({300, 200});
    b.run();
    b.compare(1);
  }
  {
    Bench b({"random routings", 2, 512, 256, 16, 4, 200}, seed + 3);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 40; ++i) {
      b.balanced(
          {static_cast<std::int64_t>(random() % 201), static_cast<std::int64_t>(random() % 201)},
          0.1 * static_cast<double>(random() % 3));
      for (int j = 0; j < 10; ++j) must(b.layer().launch(b.inputs(), b.streams()), "launch");
      must(b.layer().finish(b.streams()), "finish");
      if (i % 13 == 0) b.compare(7);
    }
  }
}

constexpr struct {
  const char* name;
  std::int64_t hidden, intermediate, experts, topk;
} kLayers[] = {{"lingbot-video", 2048, 768, 128, 8}, {"qwen3.5-397b", 4096, 1024, 512, 10},
               {"hy3", 4096, 1536, 192, 8},          {"deepseek-v4-flash", 4096, 2048, 256, 6},
               {"glm-5", 6144, 2048, 256, 8},        {"deepseek-v4-pro", 7168, 3072, 384, 6}};

void times(int ranks, std::uint64_t seed, const std::string& only, Results& results) {
  for (const auto& l : kLayers) {
    if (only != "all" && only != l.name) continue;
    Bench b({l.name, ranks, l.hidden, l.intermediate, l.experts, l.topk, 8192}, seed);
    for (const std::int64_t tokens : {8192, 1024}) {
      b.balanced(std::vector<std::int64_t>(ranks, tokens));
      const auto& c = b.config();
      const std::int32_t group =
          schedule::wave_group(tokens * ranks * l.topk, l.experts,
                               static_cast<std::int32_t>(l.experts / ranks), c.tiling(), c.workers);
      b.run();
      b.compare(257);
      const auto line = [&](const char* what, const MoeSchedule& s, MoeDispatch d) {
        results.add(l.name, static_cast<long>(tokens), what, b.median_us(s, d, 9));
      };
      b.print_marks(MoeSchedule::wave(group), MoeDispatch::kPerRank);
      line("wave per rank", MoeSchedule::wave(group), MoeDispatch::kPerRank);
      line("wave per slot", MoeSchedule::wave(group), MoeDispatch::kPerSlot);
      line("lead 4 per rank", MoeSchedule::interleaved(4), MoeDispatch::kPerRank);
      line("lead 16 per rank", MoeSchedule::interleaved(16), MoeDispatch::kPerRank);
      line("lead 64 per rank", MoeSchedule::interleaved(64), MoeDispatch::kPerRank);
      line("lead 16 per slot", MoeSchedule::interleaved(16), MoeDispatch::kPerSlot);
    }
  }
}

}  // namespace
}  // namespace xstage::moe_test

int main(int argc, char** argv) {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu, %d GPUs\n", static_cast<unsigned long long>(seed), gpus);
  const std::string what = argc > 1 ? argv[1] : "--check";
  if (what == "--check") small_cases(gpus, seed);
  if (what == "--check" || what == "--waits") waits_in_a_block(gpus, seed);
  if (what == "--check" || what == "--bf16") bf16_cases(gpus, seed);
  if (what == "--time") {
    Results results;
    times(std::min(gpus, 2), seed, argc > 2 ? argv[2] : "all", results);
    results.write(argc > 3 ? argv[3] : "", "moe_fused_device --time", argc > 4 ? argv[4] : "");
  }
  std::printf("%s\n", g_ok ? "PASSED" : "FAILED");
  return g_ok ? 0 : 1;
}
