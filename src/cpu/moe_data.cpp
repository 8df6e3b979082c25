#include "cpu/moe_data.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

#include "cpu/numbers.hpp"
#include "shapes/random.hpp"

namespace xstage::cpu {
namespace {

/// A byte of uniform bits becomes a value of a normal distribution: the table holds its 256
/// quantiles. One 64-bit random number gives eight weights; a layer has hundreds of millions.
struct NormalQuantiles {
  float value[256];
  NormalQuantiles() {
    // The distribution function has no closed inverse; the table is filled from a running sum.
    constexpr int kSteps = 1 << 16;
    constexpr double kFrom = -4.5, kStep = 9.0 / kSteps;
    double sum = 0;
    int next = 0;
    for (int i = 0; i < kSteps && next < 256; ++i) {
      const double z = kFrom + (i + 0.5) * kStep;
      sum += std::exp(-0.5 * z * z) * kStep * 0.3989422804014327;
      while (next < 256 && sum >= (next + 0.5) / 256) value[next++] = static_cast<float>(z);
    }
    while (next < 256) value[next++] = 2.9f;
  }
};

const NormalQuantiles kNormal;

template <class T>
void fill(T* out, std::int64_t count, const T (&table)[256], std::uint64_t seed,
          std::uint64_t stream) {
  constexpr std::int64_t kChunk = 1 << 20;  // the same weights whatever the number of threads
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  const auto work = [&](std::int64_t first, std::int64_t step) {
    for (std::int64_t chunk = first; chunk < chunks; chunk += step) {
      // xorshift64*: a Mersenne twister's 2.5 KB of state a chunk would cost more than the chunk.
      std::uint64_t state =
          shapes::Random(seed, (stream << 32) + static_cast<std::uint64_t>(chunk)).bits() | 1;
      const std::int64_t end = std::min(count, (chunk + 1) * kChunk);
      for (std::int64_t i = chunk * kChunk; i < end;) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        std::uint64_t bits = state * 0x2545f4914f6cdd1dULL;
        for (int byte = 0; byte < 8 && i < end; ++byte, ++i, bits >>= 8) out[i] = table[bits & 255];
      }
    }
  };
  const auto threads =
      static_cast<std::int64_t>(std::clamp<unsigned>(std::thread::hardware_concurrency(), 1, 16));
  std::vector<std::jthread> helpers;
  for (std::int64_t t = 1; t < std::min(threads, chunks); ++t)
    helpers.emplace_back(work, t, std::min(threads, chunks));
  work(0, std::max<std::int64_t>(1, std::min(threads, chunks)));
}

void fill_scales(std::vector<float>& scales, std::int64_t count, double size, std::uint64_t seed,
                 std::uint64_t stream) {
  shapes::Random random(seed, stream << 32);
  scales.resize(static_cast<std::size_t>(count));
  for (float& scale : scales)
    scale = static_cast<float>(size * std::exp2(random.uniform() * 2.0 - 1.0));
}

constexpr float kCodeUnit = 64.0f;  // one standard deviation; 2.9 of them stay below 448

}  // namespace

std::int64_t MoeWeights::bytes_needed(WeightFormat format, std::int64_t experts,
                                      std::int64_t hidden, std::int64_t intermediate) {
  return experts * 3 * hidden * intermediate * activation_bytes(format);
}

Result<MoeWeights> MoeWeights::random(WeightFormat format, std::int64_t experts,
                                      std::int64_t hidden, std::int64_t intermediate,
                                      std::uint64_t seed) {
  MoeWeights out;
  out.format = format;
  out.experts = experts;
  out.hidden = hidden;
  out.intermediate = intermediate;
  const std::int64_t values1 = experts * 2 * intermediate * hidden;
  const std::int64_t values2 = experts * hidden * intermediate;
  const std::int64_t bytes = activation_bytes(format);
  auto w1 = Pages::allocate(values1 * bytes, "w1");
  if (!w1) return w1.error();
  auto w2 = Pages::allocate(values2 * bytes, "w2");
  if (!w2) return w2.error();
  out.w1 = std::move(*w1);
  out.w2 = std::move(*w2);
  // Standard deviations of 1/sqrt(fan-in) keep activations of the order of one.
  const double size1 = 1.0 / std::sqrt(static_cast<double>(hidden));
  const double size2 = 1.0 / std::sqrt(static_cast<double>(intermediate));
  if (format == WeightFormat::kBf16) {
    std::uint16_t table1[256], table2[256];
    for (int i = 0; i < 256; ++i) {
      table1[i] = float_to_bf16(kNormal.value[i] * static_cast<float>(size1));
      table2[i] = float_to_bf16(kNormal.value[i] * static_cast<float>(size2));
    }
    fill(static_cast<std::uint16_t*>(out.w1.base()), values1, table1, seed, 11);
    fill(static_cast<std::uint16_t*>(out.w2.base()), values2, table2, seed, 12);
    return out;
  }
  std::uint8_t table[256];
  for (int i = 0; i < 256; ++i) table[i] = float_to_e4m3(kNormal.value[i] * kCodeUnit);
  fill(static_cast<std::uint8_t*>(out.w1.base()), values1, table, seed, 11);
  fill(static_cast<std::uint8_t*>(out.w2.base()), values2, table, seed, 12);
  fill_scales(out.w1_scales, experts * blocks(2 * intermediate) * blocks(hidden),
              size1 / static_cast<double>(kCodeUnit), seed, 13);
  fill_scales(out.w2_scales, experts * blocks(hidden) * blocks(intermediate),
              size2 / static_cast<double>(kCodeUnit), seed, 14);
  return out;
}

std::vector<MoeInput> random_inputs(const shapes::Routing& routing, std::int64_t hidden,
                                    std::uint64_t seed) {
  std::vector<MoeInput> out;
  for (std::size_t rank = 0; rank < routing.ranks.size(); ++rank) {
    const shapes::RankRouting& routes = routing.ranks[rank];
    MoeInput input;
    input.tokens = routes.tokens;
    input.experts = routes.experts;
    input.weights = routes.weights;
    input.x.resize(static_cast<std::size_t>(routes.tokens * hidden));
    shapes::Random random(seed, (std::uint64_t{20} << 32) + rank);
    for (auto& value : input.x) value = float_to_bf16(static_cast<float>(random.normal()));
    out.push_back(std::move(input));
  }
  return out;
}

}  // namespace xstage::cpu
