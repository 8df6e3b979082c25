// Laws of the Burst-Gap model as properties.
#include "xstage/model/burst_gap.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

namespace xstage::model {
namespace {

/// A number in [low, high], uniform in its logarithm.
double log_uniform(double low, double high) {
  const double t = *rc::gen::inRange(0, 1'000'001) / 1e6;
  return low * std::pow(high / low, t);
}

std::vector<GroupClass> any_classes() {
  std::vector<GroupClass> classes;
  const int n = *rc::gen::inRange(1, 6);
  for (int i = 0; i < n; ++i)
    classes.push_back({*rc::gen::inRange(1, 9), *rc::gen::inRange(1, 20)});
  return classes;
}

/// A mechanism with a straight staircase, no loop, any capacity.
MechanismProfile any_mechanism() {
  MechanismProfile m;
  m.mechanism = Mechanism::kStoreV4;
  m.threads = 256;
  m.sm_rate_gb_s = log_uniform(20, 200);
  const double base = log_uniform(0.01, 0.2);
  for (std::int64_t bytes = 4096; bytes <= 131072; bytes += 4096)
    m.isolated_issue.push_back(
        {bytes, base + drain_us(static_cast<double>(bytes), m.sm_rate_gb_s)});
  m.capacity = Capacity{log_uniform(1e3, 1e5),
                        log_uniform(1e3, 1e5),
                        log_uniform(1, 16e3),
                        log_uniform(0.01, 1),
                        log_uniform(1, 1e5),
                        log_uniform(1, 2e3),
                        {1, 2}};
  return m;
}

MechanismProfile any_size_mechanism() {
  MechanismProfile m;
  m.threads = 256;
  m.sm_rate_gb_s = 50.7;
  m.isolated_issue = {{4096, 0.08}, {131072, 2.4}};
  return m;
}

TEST(ClosedForm, Laws) {
  EXPECT_TRUE(rc::check("period covers both terms; issue, overhead and recovery gap agree", [] {
    const double issue0 = log_uniform(0.01, 10);
    const double gap = *rc::gen::inRange(0, 2) ? log_uniform(0.001, 100) : 0.0;
    const double drain = log_uniform(0.01, 100);
    const double period = closed_form::period_us(issue0, gap, drain);
    RC_ASSERT(period >= issue0 + gap);
    RC_ASSERT(period >= drain);
    RC_ASSERT(period <= closed_form::completion_coupled_period_us(gap, drain) + issue0);
    const double issue = closed_form::issue_us(issue0, gap, drain);
    RC_ASSERT(issue >= issue0);
    // What the issuer sees: in both regimes the period is issue + gap.
    RC_ASSERT(std::abs(issue + gap - period) < 1e-9 * period);
    const double overhead = closed_form::overhead_us(issue0, gap, drain);
    RC_ASSERT(std::abs(issue0 + overhead - issue) < 1e-9 * issue);
    // The recovery gap is the least gap without overhead.
    const double recovery = closed_form::recovery_gap_us(issue0, drain);
    RC_ASSERT(closed_form::overhead_us(issue0, recovery * (1 + 1e-9) + 1e-12, drain) < 1e-9);
    if (recovery > 0) RC_ASSERT(closed_form::overhead_us(issue0, recovery * 0.99, drain) > 0);
  }));
}

TEST(ExpectedWait, LiesBetweenTheMaximumAndTheSum) {
  EXPECT_TRUE(rc::check("max(g, m) <= E[max(g, X)] <= g + m, sharper with more stages", [] {
    const double gap = log_uniform(0.01, 50);
    const double mean = log_uniform(0.01, 50);
    const int shape = *rc::gen::inRange(1, 25);
    const double wait = expected_wait_us(gap, mean, shape);
    RC_ASSERT(wait >= std::max(gap, mean) * (1 - 1e-9));
    RC_ASSERT(wait <= gap + mean);
    RC_ASSERT(expected_wait_us(gap, mean, shape + 1) <= wait * (1 + 1e-9));
    RC_ASSERT(expected_wait_us(gap * 1.01, mean, shape) >= wait * (1 - 1e-12));
  }));
  EXPECT_DOUBLE_EQ(expected_wait_us(0, 3, 7), 3);
  EXPECT_DOUBLE_EQ(expected_wait_us(2, 0, 7), 2);
  // One exponential time of mean 1 against a gap of 1: 1 + 1/e.
  EXPECT_NEAR(expected_wait_us(1, 1, 1), 1 + std::exp(-1.0), 1e-12);
}

TEST(MaxMinShare, ConservesAndIsFair) {
  EXPECT_TRUE(
      rc::check("the link is used up or every demand is met; unlimited groups get the most", [] {
        const auto classes = any_classes();
        std::vector<double> demand;
        for (std::size_t i = 0; i < classes.size(); ++i)
          demand.push_back(*rc::gen::inRange(0, 8) ? log_uniform(0.1, 1000) : 0.0);
        const double rate = log_uniform(1, 1000);
        const auto share = max_min_share(classes, demand, rate);
        double sum = 0;
        double wanted = 0;
        for (std::size_t i = 0; i < classes.size(); ++i) {
          RC_ASSERT(share[i] >= 0);
          RC_ASSERT(share[i] <= demand[i] * (1 + 1e-9));
          sum += share[i] * classes[i].producers();
          wanted += demand[i] * classes[i].producers();
        }
        RC_ASSERT(std::abs(sum - std::min(rate, wanted)) < 1e-6 * std::min(rate, wanted) + 1e-9);
        for (std::size_t i = 0; i < classes.size(); ++i) {
          if (share[i] >= demand[i] * (1 - 1e-9)) continue;  // limited by itself, not by the link
          for (std::size_t j = 0; j < classes.size(); ++j)
            RC_ASSERT(share[j] * classes[j].sms <= share[i] * classes[i].sms * (1 + 1e-9));
        }
      }));
}

TEST(Steady, IsTheClosedFormWithoutLoopCosts) {
  EXPECT_TRUE(rc::check("one group size, no loop: equations (1) and (2)", [] {
    const MechanismProfile m = any_mechanism();
    const std::vector<GroupClass> classes{{*rc::gen::inRange(1, 7), *rc::gen::inRange(1, 25)}};
    const std::int64_t bytes = 4096 * *rc::gen::inRange(1, 33);
    const double gap = log_uniform(0.01, 50);
    const double rate = log_uniform(10, 1000);
    const Steady s = steady(m, classes, bytes, gap, rate);
    const double drain = drain_us(static_cast<double>(bytes) * classes[0].producers(), rate);
    RC_ASSERT(std::abs(s.period_us / closed_form::period_us(s.issue0_us, gap, drain) - 1) < 1e-9);
    RC_ASSERT(std::abs(s.issue_us / closed_form::issue_us(s.issue0_us, gap, drain) - 1) < 1e-9);
  }));
}

TEST(Steady, PeriodLawHoldsWhateverTheGroups) {
  EXPECT_TRUE(rc::check("all producers together: max(T_iss0 + G, V/R)", [] {
    const MechanismProfile m = any_mechanism();
    const auto classes = any_classes();
    int producers = 0;
    for (const GroupClass& c : classes) producers += c.producers();
    const std::int64_t bytes = 4096 * *rc::gen::inRange(1, 33);
    const double gap = log_uniform(0.01, 50);
    const double rate = log_uniform(10, 1000);
    const Steady s = steady(m, classes, bytes, gap, rate);
    const double drain = drain_us(static_cast<double>(bytes) * producers, rate);
    RC_ASSERT(std::abs(s.period_us / std::max(s.issue0_us + gap, drain) - 1) < 1e-9);
    RC_ASSERT(s.issue_us >= s.issue0_us * (1 - 1e-12));
    RC_ASSERT(steady(m, classes, bytes, gap * 1.1, rate).issue_us <= s.issue_us * (1 + 1e-9));
  }));
}

TEST(Isolated, LindleyBounds) {
  EXPECT_TRUE(
      rc::check("between T_iss0 and the whole drain; more capacity or rate never hurts", [] {
        MechanismProfile m = any_mechanism();
        const auto classes = any_classes();
        int producers = 0;
        for (const GroupClass& c : classes) producers += c.producers();
        const std::int64_t bytes = 4096 * *rc::gen::inRange(1, 65);
        const double rate = log_uniform(10, 1000);
        const Isolated burst = isolated(m, *m.capacity, classes, bytes, rate);
        const double volume = static_cast<double>(bytes) * producers;
        RC_ASSERT(burst.issue_us >= burst.issue0_us * (1 - 1e-12));
        RC_ASSERT(burst.issue_us <= std::max(burst.issue0_us, drain_us(volume, rate)) * (1 + 1e-9) +
                                        drain_us(static_cast<double>(bytes), m.sm_rate_gb_s));
        Capacity larger = *m.capacity;
        larger.sm_bytes *= 1.2;
        RC_ASSERT(isolated(m, larger, classes, bytes, rate).issue_us <=
                  burst.issue_us * (1 + 1e-9));
        RC_ASSERT(isolated(m, *m.capacity, classes, bytes, rate * 1.2).issue_us <=
                  burst.issue_us * (1 + 1e-9));
        // What fits into the capacity stalls nobody.
        Capacity all;
        all.sm_bytes = static_cast<double>(bytes);
        RC_ASSERT(std::abs(isolated(m, all, classes, bytes, rate).issue_us / burst.issue0_us - 1) <
                  1e-12);
      }));
}

TEST(Isolated, EndsForTheLargestBursts) {
  MechanismProfile m = any_size_mechanism();
  const Capacity capacity{16'000, 16'000, 11'000, 0.2, 70'000, 250, {1, 2}};
  const std::vector<GroupClass> classes{{1, 7}, {2, 3}, {3, 11}, {4, 2}, {5, 1}, {6, 18}};
  for (std::int64_t bytes = 16; bytes <= (std::int64_t{1} << 40);
       bytes = bytes * 3 / 2 / 16 * 16 + 16) {
    const Isolated burst = isolated(m, capacity, classes, bytes, 373.6);
    EXPECT_TRUE(std::isfinite(burst.issue_us)) << bytes;
    EXPECT_GE(burst.issue_us, burst.issue0_us) << bytes;
  }
}

TEST(Isolated, EqualSharesFollowEquationSix) {
  MechanismProfile m;
  m.mechanism = Mechanism::kTmaBulk;  // no passes
  m.threads = 128;
  m.sm_rate_gb_s = 1000;
  m.isolated_issue = {{1024, 0.001}, {1 << 20, 0.002}};
  const Capacity capacity{20'000, 0, 0, 0, 0, 0, {8, 16}};
  const std::vector<GroupClass> classes{{4, 4}};
  const Isolated burst = isolated(m, capacity, classes, 100'000, 160);
  EXPECT_NEAR(burst.issue_us,
              closed_form::isolated_issue_us(burst.issue0_us, 1.6e6, 16 * 20'000.0, 160), 1e-9);
}

TEST(Staircase, IsConstantWithinAPassAndRisesBetween) {
  const Curve curve{{4096, 0.08}, {6144, 0.107}, {8192, 0.109}, {16384, 0.18}, {32768, 0.46}};
  EXPECT_DOUBLE_EQ(staircase_us(curve, 16, 4096), 0.08);
  EXPECT_DOUBLE_EQ(staircase_us(curve, 5000, 4096), 0.107);  // the pass of 6144
  EXPECT_DOUBLE_EQ(staircase_us(curve, 13000, 4096), 0.18);  // the pass of 16384
  EXPECT_NEAR(staircase_us(curve, 12288, 4096), 0.1445, 1e-9);
  EXPECT_DOUBLE_EQ(staircase_us(curve, 9000, 4096), staircase_us(curve, 12288, 4096));
  EXPECT_GT(staircase_us(curve, 65536, 4096), 0.46);
  for (std::int64_t bytes = 16; bytes < 100'000; bytes += 16)
    EXPECT_LE(staircase_us(curve, bytes, 4096), staircase_us(curve, bytes + 16, 4096) + 1e-12);
}

TEST(LastPass, IsWhatTheLastRoundOfStoresCarries) {
  EXPECT_EQ(last_pass_bytes(40960, 16384), 8192);
  EXPECT_EQ(last_pass_bytes(32768, 16384), 16384);
  EXPECT_EQ(last_pass_bytes(16, 4096), 16);
  EXPECT_EQ(last_pass_bytes(65536, 0), 0);
}

}  // namespace
}  // namespace xstage::model
