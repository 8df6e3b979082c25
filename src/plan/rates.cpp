#include "xstage/plan/rates.hpp"

#include <fmt/format.h>

namespace xstage::plan {

MathRates moe_rates(const MatrixWork& work, std::int64_t experts, int ranks, std::int64_t rows,
                    std::int32_t block_m, std::int32_t block_n, int workers) {
  const schedule::MoeTiling tiling =
      schedule::moe_tiling(work.hidden, work.intermediate, block_m, block_n);
  const TileTimes times = tile_times(work, experts, ranks, rows, tiling, workers);
  const auto tflops = [&](std::int64_t depth, double tile_us) {
    return 2.0 * block_m * block_n * static_cast<double>(depth) * workers / (tile_us * 1e6);
  };
  return {tflops(work.hidden, times.linear1_us), tflops(work.intermediate, times.linear2_us),
          times.assumed, times.source};
}

MathRates given_rate(double tflops) {
  return {tflops, tflops, true, fmt::format("{:g} TFLOP/s, as given", tflops)};
}

}  // namespace xstage::plan
