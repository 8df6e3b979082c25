// Spans of other people's kernels: what is accepted is also audited, against the shipped profile.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "cli/spans_audit.hpp"

namespace {

const xstage::model::Profile& profile() {
  static const xstage::model::Profile loaded =
      xstage::model::load_profile(XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json").value();
  return loaded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage;
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  const auto spans = cli::parse_spans(in, "spans.json");
  if (!spans.ok()) {
    if (spans.error().message().empty() || spans.error().field.empty()) std::abort();
    return 0;
  }
  const auto audit = cli::audit_spans(*spans, profile());
  if (!audit.ok()) {
    if (audit.error().message().empty()) std::abort();
    return 0;
  }
  // A NaN or infinity is written as null, which no reader of the audit expects.
  for (const char* key : {"issue_us", "rate_gb_per_s", "stall_fraction"})
    if (audit->contains(key) && (*audit)[key].is_number() &&
        !std::isfinite((*audit)[key].get<double>()))
      std::abort();
  return 0;
}
