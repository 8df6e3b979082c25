// Rows that an interrupted bench left: those that are taken up hold what a summary reads.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/bench_moe_rows.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage;
  const nlohmann::json document = {{"table", "sweep"}, {"provenance", {{"kernel_digest", "d"}}}};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const nlohmann::json& row : cli::rows_to_take_up(text, document)) {
    if (cli::key_of_row(row).empty()) std::abort();
    for (const nlohmann::json& run : row["runs"]) {
      const auto& us = run["time_us"];
      const double spread =
          (us["p95"].get<double>() - us["p05"].get<double>()) / us["median"].get<double>();
      if (!std::isfinite(spread) || run["dispatch"].get<std::string>().size() > size) std::abort();
      if (run.contains("predicted_us") &&
          !std::isfinite(run["predicted_us"].get<double>() / us["median"].get<double>()))
        std::abort();
    }
  }
  return 0;
}
