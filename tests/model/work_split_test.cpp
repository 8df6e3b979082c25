// What giving out tiles unequally is worth.
#include "xstage/model/work_split.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace xstage::model {
namespace {

const std::vector<GroupClass> kH200{{4, 6}, {6, 18}};

TEST(WorkSplit, NothingIsGainedWhereTheLinkIsTheLimitOrNobodyFeelsIt) {
  const WorkSplit saturated = work_split(kH200, 64, 32768, 0.5, 374);
  EXPECT_NEAR(saturated.claimed_gain(), 1, 1e-9);
  EXPECT_NEAR(saturated.by_group_gain(), 1, 1e-9);
  const WorkSplit idle = work_split(kH200, 64, 32768, 30, 374);
  EXPECT_NEAR(idle.claimed_gain(), 1, 1e-9);
  // SMs of small groups would work on more tiles than the others: their work is the limit.
  EXPECT_NEAR(idle.by_group_gain(), 4.0 * 24 / 132, 1e-9);
}

TEST(WorkSplit, ClaimingGainsWhereLargeGroupsWaitAndSmallOnesDoNot) {
  const WorkSplit split = work_split(kH200, 64, 32768, 11, 374);
  EXPECT_GT(split.claimed_gain(), 1.005);
  EXPECT_LT(split.claimed_gain(), 1.1);
}

RC_GTEST_PROP(WorkSplitLaws, ClaimingNeverLosesAndNothingBeatsTheLink, ()) {
  const auto groups = *rc::gen::inRange(1, 20);
  std::vector<GroupClass> classes{{*rc::gen::inRange(1, 5), groups},
                                  {*rc::gen::inRange(5, 9), *rc::gen::inRange(1, 20)}};
  const double busy = *rc::gen::inRange(1, 300) * 0.1, rate = *rc::gen::inRange(50, 900);
  const double bytes = 16.0 * *rc::gen::inRange(64, 16384);
  const WorkSplit split = work_split(classes, 32, bytes, busy, rate);
  const double sms = classes[0].producers() + classes[1].producers();
  const double bound = std::max(32 * sms * bytes / (1000 * rate), 32 * busy);
  RC_ASSERT(split.claimed_us >= bound * (1 - 1e-9));
  RC_ASSERT(split.equal_us >= split.claimed_us * (1 - 1e-9));
  RC_ASSERT(split.by_group_us >= split.claimed_us * (1 - 1e-9));
}

}  // namespace
}  // namespace xstage::model
