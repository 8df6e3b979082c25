// A few launches of a layer as small as one can be, for tools that make a kernel a hundred times
// slower: waits may take long, and nothing but the layer's own kernel does much.
//   compute-sanitizer --tool memcheck --kernel-name kernel_substring=fused
//       moe_memory_device [RANKS [WORKERS [WAIT_S]]]     default 1 rank, all SMs, 20 s
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "moe_bench.cuh"

int main(int argc, char** argv) {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const int ranks = std::min(argc > 1 ? std::atoi(argv[1]) : 1, gpus);
  const auto begun = std::chrono::steady_clock::now();
  const auto say = [&](const char* what) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begun);
    std::printf("%6ld ms  %s\n", static_cast<long>(ms.count()), what);
  };
  Sizes z{"small", ranks, 256, 128, 4 * ranks, 2, 150};
  z.workers = argc > 2 ? std::atoi(argv[2]) : 0;
  z.wait = std::chrono::seconds(argc > 3 ? std::atoi(argv[3]) : 20);
  Bench b(z, 1);
  // Not all rows full; a rank's last one has pairs that nobody computes.
  b.balanced(std::vector<std::int64_t>(static_cast<std::size_t>(ranks), z.capacity - 7), 0.1);
  say("set up");
  for (const MoeDispatch way : {MoeDispatch::kPerRank, MoeDispatch::kPerSlot})
    for (const MoeSchedule& s : {MoeSchedule::wave(1), MoeSchedule::interleaved(1)}) {
      must(b.layer().set_schedule(s, way), "schedule");
      b.run(true);
      if (way == MoeDispatch::kPerRank && s.kind == xstage::schedule::MoeScheduleKind::kWave)
        b.keep();
      else
        b.expect_same("with every order and way of dispatch");
      say("launched");
    }
  std::printf("%s\n", g_ok ? "PASSED" : "FAILED");
  return g_ok ? 0 : 1;
}
