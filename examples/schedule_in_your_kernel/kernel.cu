// Somebody's persistent kernel on xstage's tile order.
#include <cstdint>

#include "tile_loop.hpp"

using namespace xstage::schedule;

namespace {

struct Device {
  std::uint32_t* linear1_done;  // a row's finished Linear-1 tiles, zero before the launch
  std::int32_t n1;
  float* out;

  __device__ void wait_for_tokens(std::int64_t) {}
  __device__ void wait_for_linear1(std::int64_t row) {
    if (threadIdx.x == 0)
      while (*static_cast<volatile std::uint32_t*>(linear1_done + row) <
             static_cast<std::uint32_t>(n1)) {
      }
    __syncthreads();
  }
  __device__ void linear1(const MoeTile& tile) {
    // … matrix work and SwiGLU …
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(linear1_done + tile.row, 1U);
  }
  __device__ void linear2(const MoeTile& tile) {
    // … matrix work, then one burst of remote stores …
    if (threadIdx.x == 0) out[tile.position] = static_cast<float>(tile.column);
  }
};

}  // namespace

// Launch with as many blocks as fit on the GPU at once. `tokens`: of each local expert, in memory
// that every block can read; the order is the same for all of them.
__global__ void moe_kernel(MoeTiling tiling, MoeSchedule schedule, const std::uint32_t* tokens,
                           std::int32_t experts, std::uint32_t* linear1_done, float* out) {
  const MoeOrder order(tiling, schedule, tokens, experts);
  StaticTiles<MoeOrder> tiles(order, blockIdx.x, gridDim.x);
  Device work{linear1_done, tiling.n1, out};
  tile_loop(tiles, work);
}
