// Random numbers that are the same on every machine and library for the same seed (the standard
// library's distributions are not).
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace xstage::shapes {

/// A stream of random numbers, given by a seed and the number of the stream.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0)
      : engine_(mix(mix(seed) + stream)) {}

  std::uint64_t bits() { return engine_(); }

  /// Uniform in [0, below); `below` at least 1 and less than 2^32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(((engine_() >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  /// Standard normal (Box-Muller, one of the pair).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  /// SplitMix64's finaliser: neighbouring seeds give unrelated streams.
  static std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }

  std::mt19937_64 engine_;
};

}  // namespace xstage::shapes
