// What an order costs on a node, from a program of your own: profile in, time out.
#include <cstdio>

#include "xstage/sim/moe_layer.hpp"

using namespace xstage;

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: cost PROFILE.json\n");
    return 2;
  }
  const auto profile = model::load_profile(std::filesystem::path(argv[1]));
  if (!profile) {
    std::fprintf(stderr, "%s\n", profile.error().message().c_str());
    return 2;
  }
  // Two ranks, 128 experts, every rank sends 512 of its 8192 tokens to each of them (k = 8).
  const sim::MoeLayerSpec layer{"lingbot-video", 2048, 768, 8, 8192, 1, 1};
  sim::MoeTraffic traffic{2, 128, std::vector<std::uint32_t>(256, 512)};
  const auto setup = sim::set_up_moe(*profile, layer, traffic, {});
  if (!setup) {
    std::fprintf(stderr, "%s\n", setup.error().message().c_str());
    return 2;
  }
  const auto wave = sim::simulate_moe(*setup, sim::wave_schedule(*setup), 1);
  const auto interleaved = sim::simulate_moe(*setup, schedule::MoeSchedule::interleaved(24), 1);
  std::printf("wave %.0f us, interleaved with a lead of 24 rows %.0f us\n", wave.time_us,
              interleaved.time_us);
}
