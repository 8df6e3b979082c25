#include "xstage/sim/spin_kernel.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace xstage::sim {
namespace {

/// The node as its samples describe it: R with both directions, Q(132) / 132 of isolated bursts,
/// the groups of SMs, and the grain that the spread of the windowed samples shows.
EgressParameters h200() {
  EgressParameters p;
  p.drain_rate = 368500;
  p.sm_rate = 50700;
  p.queue_per_sm = 22500;
  p.grain = 1000;
  std::ifstream file(XSTAGE_SOURCE_DIR "/data/h200x2/sm_groups.json");
  p.groups = nlohmann::json::parse(file).at("gpus").at(0).at("groups").get<decltype(p.groups)>();
  return p;
}

Result<std::vector<ScheduleSample>> measured() {
  std::ifstream file(XSTAGE_SOURCE_DIR "/data/h200x2/synthetic_schedule.csv");
  return read_schedule_samples(file);
}

TEST(SpinKernel, MeasuredSchedulesAreReproduced) {
  const auto samples = measured();
  ASSERT_TRUE(samples.ok()) << samples.error().message();
  ASSERT_EQ(samples->size(), 18U);
  for (std::uint64_t seed : {2, 3}) {
    ScheduleSampleKernel kernel;
    kernel.issue_us = 0.455;
    kernel.residual = 4096;
    const ScheduleValidation v = validate_schedules(h200(), kernel, *samples, seed);
    EXPECT_LE(v.speedup_mean, 0.01);
    EXPECT_LE(v.speedup_worst, 0.025);
    EXPECT_LE(v.time_mean, 0.02);
    EXPECT_LE(v.time_worst, 0.04);
  }
}

// The agreement is the model's, not the test's: without drift blocks stay in lockstep and the
// speed-up is far off.
TEST(SpinKernel, LockstepBlocksAreFarOff) {
  ScheduleSampleKernel kernel;
  kernel.issue_us = 0.455;
  kernel.residual = 4096;
  EgressParameters even = h200();
  even.grain = 0;
  EXPECT_GT(validate_schedules(even, kernel, *measured()).speedup_worst, 0.1);
}

TEST(ScheduleSamples, BadFilesAreRefusedWithLineAndColumn) {
  const std::string header =
      "layer,remote_percent,linear1_tile_us,n1,linear2_tile_us,n2,compute_us,wave_us,interleaved_"
      "us\n";
  const auto error_of = [](const std::string& text) {
    std::istringstream in(text);
    const auto result = read_schedule_samples(in);
    return result.ok() ? std::string() : result.error().message();
  };
  EXPECT_EQ(error_of(header + "a,50,8.86,12,3.32,16,2551,3093,2867\r\n"), "");
  EXPECT_NE(error_of(""), "");
  EXPECT_NE(error_of(header), "");
  EXPECT_NE(error_of("layer,n1\na,2\n").find("remote_percent"), std::string::npos);
  for (const auto& [row, column] :
       {std::pair{"a,50,x,12,3.32,16,2551,3093,2867", "linear1_tile_us"},
        {"a,nan,1,12,3.32,16,2551,3093,2867", "remote_percent"},
        {"a,50,8,0,3.32,16,2551,3093,2867", "n1"},
        {"a,50,8,1.5,3.32,16,2551,3093,2867", "n1"},
        {"a,50,8,12,-3,16,2551,3093,2867", "linear2_tile_us"},
        {"a,50,8,12,3,16,2551,inf,2867", "wave_us"},
        {"a,50,8,12,3,16,2551,3093", "interleaved_us"},
        {"a,50,8,12,3,16,1,3093,2867", "compute_us"},
        {"a,101,8,12,3,16,2551,3093,2867", "remote_percent"}}) {
    const std::string message = error_of(header + row + "\n");
    EXPECT_NE(message.find(std::string("line 2, column ") + column), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace xstage::sim
