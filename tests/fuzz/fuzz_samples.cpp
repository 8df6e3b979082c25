// Files of measured bursts, of every kind that `fit` reads.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "xstage/model/samples.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage;
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  const auto samples = model::read_samples(in, "samples");
  if (!samples.ok() && samples.error().message().empty()) std::abort();
  return 0;
}
