// The inventory against a driver that is not there, has no GPU, one GPU, MIG, or unreachable pairs.
#include "cuda/driver.hpp"

#include <gtest/gtest.h>

namespace xstage::cuda {
namespace {

class FakeDriver final : public DriverApi {
 public:
  std::optional<Error> start_error;
  std::vector<GpuState> gpus;
  bool peer_access = true;
  std::string nvml_reason;
  int links = 18;

  Result<bool> start() override {
    if (start_error) return *start_error;
    return true;
  }
  std::string driver_version() override { return "580.159.04"; }
  int cuda_version() override { return 13000; }
  Result<int> device_count() override { return static_cast<int>(gpus.size()); }
  Result<GpuState> device(int index) override { return gpus[static_cast<std::size_t>(index)]; }
  PairState pair(int, int) override {
    PairState out;
    out.peer_access = peer_access;
    out.links = links;
    out.why = nvml_reason;
    return out;
  }
};

GpuState hopper(int index) {
  GpuState gpu;
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.major = 9;
  gpu.sms = 132;
  return gpu;
}

TEST(Driver, AbsentDriverSaysSo) {
  FakeDriver driver;
  driver.start_error = Error{ErrorKind::kNoGpu, "no NVIDIA driver on this machine", {}, {}, {}};
  const NodeState node = look_around(driver);
  EXPECT_FALSE(node.driver_loaded);
  EXPECT_EQ(node.why_no_gpu, "no NVIDIA driver on this machine");
  const auto error = why_not_calibrate(node, {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kNoGpu);
}

TEST(Driver, DriverWithoutGpu) {
  FakeDriver driver;
  const NodeState node = look_around(driver);
  EXPECT_TRUE(node.driver_loaded);
  EXPECT_EQ(node.cuda_version, "13.0");
  const auto error = why_not_calibrate(node, {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kNoGpu);
  EXPECT_NE(error->what.find("shows no GPU"), std::string::npos);
}

TEST(Driver, OneGpuIsTooFew) {
  FakeDriver driver;
  driver.gpus = {hopper(0)};
  const NodeState node = look_around(driver);
  EXPECT_TRUE(node.pairs.empty());
  const auto error = why_not_calibrate(node, {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kUnsupported);
  EXPECT_EQ(error->value, "1");
}

TEST(Driver, TwoGpusThatReachEachOther) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  const NodeState node = look_around(driver);
  ASSERT_EQ(node.pairs.size(), 2u);
  EXPECT_FALSE(why_not_calibrate(node, {}));
  EXPECT_FALSE(why_not_calibrate(node, {0, 1}));
  const auto error = why_not_calibrate(node, {0, 7});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kBadInput);
  EXPECT_EQ(error->allowed, "0 to 1");
}

TEST(Driver, ALayerNeedsAGpuARank) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  const NodeState node = look_around(driver);
  EXPECT_FALSE(why_not_ranks(node, 1));
  EXPECT_FALSE(why_not_ranks(node, 2));
  const auto few = why_not_ranks(node, 4);
  ASSERT_TRUE(few);
  EXPECT_EQ(few->kind, ErrorKind::kUnsupported);
  EXPECT_EQ(few->field, "--ranks");
  driver.gpus[1].major = 8;
  const NodeState other = look_around(driver);
  EXPECT_FALSE(why_not_ranks(other, 1));
  EXPECT_TRUE(why_not_ranks(other, 2));
}

TEST(Driver, FourAndEightGpusAreLookedAtPairByPair) {
  for (const int gpus : {4, 8}) {
    FakeDriver driver;
    for (int i = 0; i < gpus; ++i) driver.gpus.push_back(hopper(i));
    const NodeState node = look_around(driver);
    EXPECT_EQ(node.pairs.size(), static_cast<std::size_t>(gpus * (gpus - 1)));
    EXPECT_FALSE(why_not_calibrate(node, {}));
    EXPECT_FALSE(why_not_calibrate(node, {0, gpus - 1}));
    EXPECT_TRUE(why_not_calibrate(node, {0, gpus}));
    // One GPU in slices rules out a calibration that uses it, and no other.
    driver.gpus[1].mig = true;
    const NodeState sliced = look_around(driver);
    EXPECT_TRUE(why_not_calibrate(sliced, {}));
    EXPECT_FALSE(why_not_calibrate(sliced, {0, 2}));
  }
}

TEST(Driver, PairWithoutPeerAccessIsNamedWithItsReason) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  driver.peer_access = false;
  driver.nvml_reason = "the chipset does not support peer access";
  const auto error = why_not_calibrate(look_around(driver), {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kUnsupported);
  EXPECT_EQ(error->value, "0 -> 1");
  EXPECT_NE(error->what.find("chipset"), std::string::npos);
}

TEST(Driver, PairWithoutAReasonStillGetsOne) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  driver.peer_access = false;
  driver.links = 0;
  for (const PairState& pair : look_around(driver).pairs) EXPECT_FALSE(pair.why.empty());
}

TEST(Driver, MigIsSaidPlainly) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  driver.gpus[1].mig = true;
  driver.peer_access = false;
  const NodeState node = look_around(driver);
  const auto error = why_not_calibrate(node, {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kUnsupported);
  EXPECT_NE(error->what.find("MIG"), std::string::npos);
  for (const PairState& pair : node.pairs) EXPECT_NE(pair.why.find("MIG"), std::string::npos);
}

TEST(Driver, OtherArchitectureIsRefused) {
  FakeDriver driver;
  driver.gpus = {hopper(0), hopper(1)};
  driver.gpus[0].major = 8;
  const auto error = why_not_calibrate(look_around(driver), {});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->allowed, "compute capability 9.0");
}

TEST(Driver, TheRealOneNeverThrows) {
  const auto driver = system_driver();
  const NodeState node = look_around(*driver);
  EXPECT_EQ(node.why_no_gpu.empty(), !node.gpus.empty());
  surroundings();
}

}  // namespace
}  // namespace xstage::cuda
