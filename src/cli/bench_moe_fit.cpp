#include "cli/bench_moe_fit.hpp"

#include <fmt/format.h>

#include <cmath>

#include "cli/bench.hpp"
#include "cli/fused_fit.hpp"
#include "cli/inputs.hpp"
#include "cli/outputs.hpp"
#include "cli/provenance.hpp"
#include "cuda/build_info.hpp"
#include "xstage/atomic_file.hpp"
#include "xstage/input_file.hpp"

namespace xstage::cli {
namespace {

using nlohmann::json;

/// A measured table, or why the file is none.
Result<json> measured_table(const std::string& file, const char* option) {
  auto in = open_input(file, option).value();
  auto document = parse_json(in);
  if (!document || !document->is_object() || !document->contains("rows"))
    return bad_input("not a document of bench moe", option, file, "what --table wrote");
  return std::move(*document);
}

/// Writes the document where --out says, and prints it with --json.
int answer(const Console& console, const std::string& out, const json& document) {
  if (!out.empty())
    if (auto written = write_file(out, document.dump(1) + "\n"); !written)
      return console.fail(written.error(), document);
  console.document(document);
  return 0;
}

}  // namespace

int judge_predictions(const Console& console, const MoeBenchOptions& options) {
  const std::string& file = options.cross_validate;
  json document = {{"format", "xstage.bench/1"}, {"provenance", provenance("bench moe", {file})}};
  check_outputs({{"--out", options.out, "xstage.bench"}});
  const auto profile = profile_or_shipped(options.profile);
  const auto measured = measured_table(file, "--cross-validate");
  if (!measured) return console.fail(measured.error(), document);
  document["measured"] = (*measured)["provenance"];
  document["node"] = measured->value("node", json());
  try {
    auto rows = cross_validate(profile, (*measured)["rows"]);
    if (!rows) return console.fail(rows.error(), document);
    document["rows"] = std::move(*rows);
  } catch (const json::exception& error) {
    return console.fail(bad_input("a row lacks something", "--cross-validate", error.what(),
                                  "what --table sweep or kernel wrote"),
                        document);
  }
  std::vector<double> errors, ratios;
  for (const json& row : document["rows"]) {
    ratios.push_back(row["auto_over_fastest"].get<double>());
    for (const json& run : row["runs"])
      errors.push_back(
          std::abs(run["predicted_us"].get<double>() / run["measured_us"].get<double>() - 1));
  }
  console.text(fmt::format(
      "{} runs predicted from the other sizes: error median {:.1f} %, p95 {:.1f} %, worst {:.1f} "
      "%; auto over the fastest: median {:.3f}, worst {:.3f}",
      errors.size(), 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.95),
      100 * quantile(errors, 1), quantile(ratios, 0.5), quantile(ratios, 1)));
  document["ok"] = true;
  return answer(console, options.out, document);
}

int refit_times(const Console& console, const MoeBenchOptions& options) {
  check_outputs({{"--out", options.out, "xstage.moe-kernel-times"}});
  const auto profile = profile_or_shipped(options.profile);
  auto measured = measured_table(options.refit, "--refit");
  if (!measured) return console.fail(measured.error());
  json document = std::move(*measured);
  if (document.value("format", "") != "xstage.moe-kernel-times/1")
    return console.fail(bad_input("not times of the kernel", "--refit", options.refit,
                                  "what --table kernel wrote"));
  try {
    auto fit = fit_fused_times(profile, document["rows"]);
    if (!fit) return console.fail(fit.error());
    document["fit"] = std::move(*fit);
  } catch (const json::exception& error) {
    return console.fail(
        bad_input("a row lacks something", "--refit", error.what(), "what --table kernel wrote"));
  }
  // Measured then, fitted now.
  document["provenance"]["fit_made"] = {{"created_utc", now_utc()}, {"git_commit", git_commit()}};
  console.text(fmt::format("{} rows fitted anew", document["rows"].size()));
  return answer(console, options.out, document);
}

}  // namespace xstage::cli
