#include "cli/inputs.hpp"

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

std::vector<std::filesystem::path> paths(const std::vector<std::string>& files) {
  return {files.begin(), files.end()};
}

}  // namespace xstage::cli
