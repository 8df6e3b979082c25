// Who waited for what, in words.
#pragma once

#include <string>
#include <vector>

#include "xstage/result.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::cpu {

/// "rank 1, worker 0 waited 2000 ms for the routes of rank 0: wanted 3, saw 2".
std::string describe(const sync::WaitRecord& record);

/// The error of a launch in which somebody gave up: the first record that passed its limit (or
/// found something that cannot be), and how many others stopped because of it.
Error wait_error(const std::vector<sync::WaitRecord>& records, std::uint64_t limit_ns);

}  // namespace xstage::cpu
