// Reading what several verbs take: sample files and a profile.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "xstage/model/profile.hpp"
#include "xstage/model/samples.hpp"
#include "xstage/plan/fused_times.hpp"

namespace xstage::cli {

/// Reads and merges sample files; throws Failure that names the file, line and column.
model::SampleSet read_all(const std::vector<std::string>& files);

/// Loads a profile; throws Failure.
model::Profile profile_of(const std::string& file);

/// The profile of two H200 that travels inside the executable.
model::Profile shipped_profile();

/// The profile in `file`, or the shipped one where the name is empty; throws Failure.
model::Profile profile_or_shipped(const std::string& file);

/// The fused kernel's times likewise.
plan::FusedTimes kernel_times_or_shipped(const std::string& file);

/// Refuses an output that is one of the inputs: what was measured would be gone.
void refuse_overwriting(const std::vector<std::string>& inputs, const std::string& out);

std::vector<std::filesystem::path> paths(const std::vector<std::string>& files);

}  // namespace xstage::cli
