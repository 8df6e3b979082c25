// Profiles: whatever is accepted must also predict, without NaN.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "xstage/model/burst_gap.hpp"
#include "xstage/model/profile.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return 0;
  const auto profile = model::profile_from_json(document);
  if (!profile.ok()) {
    if (profile.error().message().empty()) std::abort();
    return 0;
  }
  for (const int producers : {1, 66, 132})
    for (const double gap_us : {0.0, 5.0}) {
      model::Workload workload;
      workload.producers = producers;
      workload.bytes = 32768;
      workload.gap_us = gap_us;
      const auto prediction = model::predict(*profile, workload);
      if (prediction.ok() &&
          (!std::isfinite(prediction->period_us) || !std::isfinite(prediction->issue_us)))
        std::abort();
    }
  return 0;
}
