// Times of the fused kernel: whatever is accepted must also predict a launch, without NaN.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "xstage/sim/fused_moe.hpp"

namespace {

const xstage::model::Profile& profile() {
  static const xstage::model::Profile loaded =
      xstage::model::load_profile(XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json").value();
  return loaded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage;
  const auto times = plan::parse_fused_times({reinterpret_cast<const char*>(data), size});
  if (!times.ok()) {
    if (times.error().message().empty() || times.error().field.empty()) std::abort();
    return 0;
  }
  // Two experts on each of two ranks: a launch of a few tiles, simulated in no time.
  sim::MoeTraffic traffic;
  traffic.ranks = 2;
  traffic.experts = 4;
  traffic.tokens.assign(8, 32);
  sim::MoeLayerSpec layer;
  layer.name = "a";
  layer.hidden = 256;
  layer.intermediate = 128;
  layer.topk = 2;
  layer.tokens = 64;
  const auto moe = sim::set_up_fused_moe(profile(), *times, layer, traffic);
  if (!moe.ok()) {
    if (moe.error().message().empty()) std::abort();
    return 0;
  }
  for (const auto& schedule :
       {schedule::MoeSchedule::wave(2), schedule::MoeSchedule::interleaved(1)}) {
    const auto predicted = sim::predict(*moe, schedule, 1);
    if (!std::isfinite(predicted.time_us) || !std::isfinite(predicted.stall_us)) std::abort();
  }
  return 0;
}
