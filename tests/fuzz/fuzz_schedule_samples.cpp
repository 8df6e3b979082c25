// Measured schedules, as `validate --schedule-samples` reads them.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "xstage/sim/spin_kernel.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  const auto samples = xstage::sim::read_schedule_samples(in);
  if (!samples.ok() && samples.error().message().empty()) std::abort();
  return 0;
}
