// xstage report DIR [--out FILE]: one HTML page from the JSON files of a directory.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/outputs.hpp"
#include "cli/verbs.hpp"
#include "report/page.hpp"
#include "xstage/atomic_file.hpp"

namespace xstage::cli {
namespace {

struct ReportOptions {
  std::string directory;
  std::optional<std::string> out;
};

nlohmann::json to_json(const report::Collection& collection) {
  nlohmann::json documents = nlohmann::json::array();
  for (const auto& document : collection.documents)
    documents.push_back({{"file", document.file}, {"format", "xstage." + document.kind + "/1"}});
  nlohmann::json problems = nlohmann::json::array();
  for (const auto& problem : collection.problems)
    problems.push_back({{"file", problem.file}, {"why", problem.why}});
  return {{"documents", documents}, {"problems", problems}, {"timelines", collection.timelines}};
}

// The name people know the directory by, also for "." and "out/demo/".
std::string directory_name(const std::filesystem::path& directory) {
  std::error_code ignored;
  const auto whole = std::filesystem::canonical(directory, ignored);
  const std::string name = ignored ? directory.filename().string() : whole.filename().string();
  return name.empty() ? "report" : name;
}

int run_report(const Console& console, const ReportOptions& options) {
  const std::filesystem::path directory = options.directory;
  const std::filesystem::path out =
      options.out ? std::filesystem::path(*options.out) : directory / "report.html";
  if (std::filesystem::is_directory(directory))
    check_outputs({{options.out ? "--out" : "DIR", out.string(), kPage}});
  const Result<report::Collection> collection = report::read_documents(directory);
  if (!collection) return console.fail(collection.error());
  for (const auto& problem : collection->problems)
    console.log(fmt::format("left out: {}: {}", problem.file, problem.why));

  report::PageCounts counts;
  const std::string page = report::render(*collection, directory_name(directory), &counts);
  const Result<std::size_t> written = write_file(out, page);
  nlohmann::json document = to_json(*collection);
  document["format"] = "xstage.report/1";
  if (!written) return console.fail(written.error(), document);
  document["file"] = out.filename().string();
  document["file_bytes"] = *written;
  document["figures"] = counts.figures;
  document["points"] = counts.points;
  console.document(document);
  console.text(fmt::format("{}: {} documents, {} figures, {} points", out.string(),
                           collection->documents.size(), counts.figures, counts.points));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Session& session) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* verb = app.add_subcommand("report", "One HTML page from the JSON files in DIR");
  verb->add_option("DIR", options->directory,
                   "directory with the JSON files that other verbs wrote")
      ->required();
  verb->add_option("--out", options->out, "where to write the page (DIR/report.html)");
  verb->add_flag("--json", session.console.json, "machine output on stdout");
  verb->callback([options, &session] {
    session.action = [options, &session] { return run_report(session.console, *options); };
  });
}

}  // namespace xstage::cli
