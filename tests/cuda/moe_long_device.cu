// The fused MoE layer over many launches: random routings under random schedules without a hang,
// and replays of a captured graph.
//   moe_long_device [LAUNCHES [REPLAYS [RANKS]]]    default 400, 100, and two ranks where there are
//                                                   two GPUs
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "moe_bench.cuh"

namespace xstage::moe_test {
namespace {

/// What is running, for the alarm that ends a hang: which launch it was matters more than that.
char g_running[200] = "nothing";
void on_alarm(int) {
  const char text[] = "HANGS: ";
  static_cast<void>(!write(1, text, sizeof text - 1));
  static_cast<void>(!write(1, g_running, std::strlen(g_running)));
  static_cast<void>(!write(1, "\n", 1));
  _exit(1);
}

MoeSchedule random_schedule(std::mt19937_64& random) {
  if (random() % 2 == 0) return MoeSchedule::wave(static_cast<std::int32_t>(1 + random() % 8));
  const std::int64_t leads[] = {1, 2, 3, 7, 16, 64, 1000};
  return MoeSchedule::interleaved(leads[random() % 7]);
}

/// A routing of some kind: balanced with gaps, all to few experts, all to one rank, very uneven.
void route_somehow(Bench& b, const Sizes& z, std::mt19937_64& random) {
  std::vector<std::int64_t> tokens;
  for (int r = 0; r < z.ranks; ++r)
    tokens.push_back(
        random() % 8 == 0
            ? 0
            : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(z.capacity + 1)));
  const auto experts = static_cast<std::uint64_t>(z.experts);
  const std::uint64_t kind = random() % 4, one = random() % experts;
  b.route(tokens, [&](int, std::int64_t, std::int32_t* ids, std::mt19937_64& draw) {
    for (std::int64_t s = 0; s < z.topk; ++s) {
      std::uint64_t e = draw() % experts;
      if (kind == 1) e = one;
      if (kind == 2)
        e = e / static_cast<std::uint64_t>(z.ranks) +
            one / (experts / static_cast<std::uint64_t>(z.ranks)) *
                (experts / static_cast<std::uint64_t>(z.ranks));
      if (kind == 3) e = e * (draw() % experts) / experts * (draw() % experts) / experts;
      ids[s] = draw() % 10 == 0 ? -1 : static_cast<std::int32_t>(e % experts);
    }
  });
}

/// `launches` in all; four for each routing, the same bits from each.
void many_launches(int ranks, int launches, std::uint64_t seed) {
  const Sizes all[] = {{"16 experts", ranks, 512, 256, 16, 4, 200},
                       {"8 experts, odd sizes", ranks, 768, 384, 8, 3, 333},
                       {"one expert a rank", ranks, 256, 128, ranks, 1, 500},
                       {"128 experts", ranks, 1024, 256, 128, 8, 96},
                       {"odd sizes in", ranks, 768, 384, 8, 3, 333, WeightFormat::kBf16},
                       {"lingbot-video", ranks, 2048, 768, 128, 8, 1536},
                       {"lingbot-video in", ranks, 2048, 768, 128, 8, 1536, WeightFormat::kBf16}};
  std::mt19937_64 random(seed);
  for (const Sizes& z : all) {
    Bench b(z, random());
    double different = 0;
    int done = 0, checked = 0;
    for (int routing = 0; done < launches / static_cast<int>(std::size(all)); ++routing) {
      route_somehow(b, z, random);
      for (int i = 0; i < 4; ++i, ++done) {
        const MoeSchedule schedule = random_schedule(random);
        const bool per_slot = random() % 2 == 0;
        std::snprintf(g_running, sizeof g_running,
                      "%s, launch %d of routing %d (%s), %s, group %d, lead %ld", z.name.c_str(), i,
                      routing, b.described().c_str(), per_slot ? "per slot" : "per rank",
                      schedule.kind == schedule::MoeScheduleKind::kWave ? schedule.group : 0,
                      static_cast<long>(schedule.lead));
        alarm(5);
        must(b.layer().set_schedule(schedule,
                                    per_slot ? MoeDispatch::kPerSlot : MoeDispatch::kPerRank),
             "schedule");
        must(b.layer().launch(b.inputs(), b.streams()), "launch");
        // Every other time the launches follow each other without a pause.
        if (routing % 2 == 0 || i == 3) must(b.layer().finish(b.streams()), "finish");
        if (routing % 2 == 0 && i == 0) b.keep();
        if (routing % 2 == 0 && i > 0) {
          different += b.words_that_differ();
          ++checked;
        }
      }
      if (routing % 200 == 0) b.compare(3);
    }
    alarm(0);
    expect(different == 0, "%.0f words differ",
           z.name + ", " + std::to_string(done) + " launches, " + std::to_string(checked) +
               " compared",
           different);
  }
}

/// One graph a rank; replayed with other inputs, with plain launches in between.
void graphs(int ranks, int replays, std::uint64_t seed) {
  const Sizes z{"graph", ranks, 512, 256, 16, 4, 200};
  Bench b(z, seed);
  std::mt19937_64 random(seed);
  const std::vector<std::int64_t> tokens(static_cast<std::size_t>(ranks), z.capacity);
  b.balanced(tokens);
  b.run();
  std::vector<cudaGraphExec_t> replay(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    check(cudaSetDevice(r), "device");
    check(cudaStreamBeginCapture(b.streams()[r], cudaStreamCaptureModeThreadLocal), "capture");
  }
  must(b.layer().launch(b.inputs(), b.streams()), "captured launch");
  std::vector<cudaGraph_t> graph(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    check(cudaSetDevice(r), "device");
    check(cudaStreamEndCapture(b.streams()[r], &graph[r]), "end of capture");
  }
  for (int r = 0; r < ranks; ++r) {
    check(cudaSetDevice(r), "device");
    check(cudaGraphInstantiate(&replay[r], graph[r], 0), "instantiate");
    check(cudaGraphDestroy(graph[r]), "destroy");
  }
  const auto play = [&] {
    for (int r = 0; r < ranks; ++r) {
      check(cudaSetDevice(r), "device");
      check(cudaGraphLaunch(replay[r], b.streams()[r]), "graph");
    }
  };
  double different = 0;
  for (int i = 0; i < replays; ++i) {
    b.refill(random());
    b.balanced(tokens, 0.1 * static_cast<double>(i % 3));
    b.run();
    b.keep();
    b.forget();
    play();
    if (i % 3 == 0) play();  // twice in a row
    must(b.layer().finish(b.streams()), "finish");
    different += b.words_that_differ();
    if (i % 40 == 0) b.compare(5);
  }
  expect(different == 0, "%.0f words differ", std::to_string(replays) + " replays of a graph",
         different);
  for (cudaGraphExec_t g : replay) check(cudaGraphExecDestroy(g), "destroy");
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
  const int launches = argc > 1 ? std::atoi(argv[1]) : 400;
  const int replays = argc > 2 ? std::atoi(argv[2]) : 100;
  const int ranks = argc > 3 ? std::atoi(argv[3]) : std::min(gpus, 2);
  std::printf("seed %llu, %d ranks\n", static_cast<unsigned long long>(seed), ranks);
  std::signal(SIGALRM, on_alarm);
  if (replays > 0) graphs(ranks, replays, seed);
  many_launches(ranks, launches, seed);
  std::printf("%s\n", g_ok ? "PASSED" : "FAILED");
  return g_ok ? 0 : 1;
}
