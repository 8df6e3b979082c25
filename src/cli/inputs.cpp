#include "cli/inputs.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/sim_prober.hpp"
#include "xstage/input_file.hpp"

namespace xstage::cli {

model::SampleSet read_all(const std::vector<std::string>& files) {
  model::SampleSet set;
  for (const std::string& file : files)
    set.merge(model::read_samples(std::filesystem::path(file)).value());
  return set;
}

model::Profile profile_of(const std::string& file) {
  return model::load_profile(std::filesystem::path(file)).value();
}

model::Profile shipped_profile() {
  return model::profile_from_json(nlohmann::json::parse(embedded_profile())).value();
}

model::Profile profile_or_shipped(const std::string& file) {
  return file.empty() ? shipped_profile() : profile_of(file);
}

plan::FusedTimes kernel_times_or_shipped(const std::string& file) {
  if (file.empty()) return plan::fused_times();
  const std::ifstream in = open_input(file, "--kernel-times").value();
  std::ostringstream text;
  text << in.rdbuf();
  return plan::parse_fused_times(text.str()).value();
}

void refuse_overwriting(const std::vector<std::string>& inputs, const std::string& out) {
  if (out.empty()) return;
  for (const std::string& input : inputs) {
    std::error_code code;
    if (std::filesystem::equivalent(input, out, code))
      throw Failure(bad_input("the output would replace an input", "--out", out,
                              "another file than " + input));
  }
}

std::vector<std::filesystem::path> paths(const std::vector<std::string>& files) {
  return {files.begin(), files.end()};
}

}  // namespace xstage::cli
