// What a warp or warpgroup says about itself: registers and named barriers; small arithmetic.
#pragma once

#include <cstdint>

namespace xstage::ptx {

template <int kRegisters>
__device__ __forceinline__ void set_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void set_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// `threads` counts those that wait and those that only arrive.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// The same; whether `value` was true in all of them.
__device__ __forceinline__ bool named_barrier_all(int barrier, int threads, bool value) {
  std::uint32_t all;
  asm volatile(
      "{\n"
      ".reg .pred mine, every;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.and.pred every, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, every;\n"
      "}\n"
      : "=r"(all)
      : "r"(barrier), "r"(threads), "r"(static_cast<std::uint32_t>(value))
      : "memory");
  return all != 0;
}

__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Four 8×8 matrices of 16-bit values to shared memory; lane l gives the address of row l%8 of
/// matrix l/8.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t shared_address, std::uint32_t a,
                                            std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

/// 2^x, relative error 2^-22; subnormal results are zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, relative error 2^-23; subnormal inputs and results are zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two fp32 values to bf16, round to nearest; `low` goes to the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace xstage::ptx
