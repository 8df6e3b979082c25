// Simulated against measured schedules: the part of validate that needs the simulator.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/console.hpp"
#include "xstage/model/profile.hpp"

namespace xstage::cli {

/// The "schedule" object of a validation document. Throws Failure.
nlohmann::json validate_schedule_samples(const model::Profile& profile, const std::string& file);

void print_schedule_validation(const Console& console, const nlohmann::json& schedule);

}  // namespace xstage::cli
