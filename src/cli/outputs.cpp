#include "cli/outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "xstage/atomic_file.hpp"
#include "xstage/input_file.hpp"

namespace xstage::cli {
namespace {

/// Reads a JSON text up to its outermost "format", which it stops at: a document may be large.
class FormatFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string format;

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool string(string_t& text) override {
    if (wanted_) format = text;
    return value();
  }
  bool key(string_t& name) override {
    wanted_ = depth_ == 1 && name == "format";
    return true;
  }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool value() { return !std::exchange(wanted_, false); }  // behind the format: enough
  bool enter() {
    ++depth_;
    return value();
  }
  bool leave() {
    --depth_;
    return true;
  }
  int depth_ = 0;
  bool wanted_ = false;
};

/// Whether the first lines are a header or rows of a sample file.
bool looks_like_samples(std::string_view text) {
  while (text.starts_with('#')) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line.starts_with("experiment,") || line.starts_with("mechanism,")) return true;
  // Pairs of SMs are a matrix without a header.
  return line.find(',') != std::string_view::npos &&
         line.find_first_not_of("0123456789,.-\r") == std::string_view::npos;
}

bool is_of_kind(const std::filesystem::path& path, const std::string& kind) {
  std::ifstream in(path, std::ios::binary);
  if (kind == kPage || kind == kTimeline || kind == kSamples) {
    std::string head(4096, '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(in.gcount()));
    if (kind == kSamples) return looks_like_samples(head);
    const char* const mark = kind == kPage
                                 ? "<meta name=\"generator\" content=\"xstage "
                                 : "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":";
    return head.find(mark) != std::string::npos;
  }
  FormatFinder finder;
  (void)nlohmann::json::sax_parse(in, &finder);
  return finder.format.starts_with(kind + "/");
}

/// Measured documents say on which node, predictions have only a profile.
bool is_measured(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const auto document = parse_json(in);
  return document && document->is_object() && document->contains("node");
}

void check_output(const Output& output) {
  std::error_code ignored;
  const auto status = std::filesystem::status(output.path, ignored);
  // Opening a pipe would wait for its reader, and closing it again would tell him that all is said.
  if (std::filesystem::is_other(status)) return;
  const Result<AtomicFile> file = AtomicFile::open(output.path);
  if (!file) throw Failure(file.error());
  if (!std::filesystem::is_regular_file(status) ||
      std::filesystem::file_size(output.path, ignored) == 0)
    return;
  if (is_of_kind(output.path, output.kind)) {
    if (!output.predicted || !is_measured(output.path)) return;
    throw Failure(bad_input("the file holds measurements, which predictions would replace",
                            output.option, output.path, "a new name, or a file of predictions"));
  }
  const bool document = output.kind.starts_with("xstage.");
  throw Failure(bad_input(
      "the file is there, and is of another kind than what would replace it", output.option,
      output.path,
      fmt::format("a new name, or {}", document ? "a document of " + output.kind : output.kind)));
}

}  // namespace

void check_outputs(const std::vector<Output>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].path.empty()) continue;
    check_output(outputs[i]);
    std::error_code ignored;
    const auto place = std::filesystem::weakly_canonical(outputs[i].path, ignored);
    if (std::filesystem::is_other(std::filesystem::status(place, ignored))) continue;
    for (std::size_t j = 0; j < i; ++j)
      if (!outputs[j].path.empty() &&
          place == std::filesystem::weakly_canonical(outputs[j].path, ignored))
        throw Failure(bad_input("two outputs would be one file", outputs[i].option, outputs[i].path,
                                "another file than " + outputs[j].option));
  }
}

}  // namespace xstage::cli
