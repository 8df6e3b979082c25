#include "shapes/routing.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <sstream>
#include <streambuf>
#include <tuple>

namespace xstage::shapes {
namespace {

RoutingSpec spec_of(const std::string& text) { return parse_routing(text).value(); }

RC_GTEST_PROP(Routing, EveryTokenGetsDifferentExpertsAndWeightsThatSumToOne, ()) {
  RoutingProblem p;
  p.ranks = *rc::gen::inRange(1, 9);
  p.experts = p.ranks * *rc::gen::inRange(1, 33);
  p.topk = *rc::gen::inRange<std::int64_t>(1, std::min<std::int64_t>(p.experts, 12) + 1);
  p.tokens = *rc::gen::inRange(0, 40);
  p.seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto text = *rc::gen::element<std::string>("balanced", "zipf:0", "zipf:1.2", "zipf:16");
  const Routing routing = make_routing(spec_of(text), p).value();
  RC_ASSERT(routing.ranks.size() == static_cast<std::size_t>(p.ranks));
  for (const RankRouting& rank : routing.ranks) {
    RC_ASSERT(rank.experts.size() == static_cast<std::size_t>(p.tokens * p.topk));
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      const auto* ids = rank.experts.data() + t * p.topk;
      const auto* weights = rank.weights.data() + t * p.topk;
      const std::set<std::int32_t> different(ids, ids + p.topk);
      RC_ASSERT(different.size() == static_cast<std::size_t>(p.topk));
      RC_ASSERT(*different.begin() >= 0 && *different.rbegin() < p.experts);
      RC_ASSERT(std::abs(std::accumulate(weights, weights + p.topk, 0.0) - 1.0) < 1e-5);
    }
  }
}

RC_GTEST_PROP(Routing, RemoteShareIsExact, ()) {
  RoutingProblem p;
  p.ranks = *rc::gen::inRange(2, 9);
  p.topk = *rc::gen::inRange(1, 9);
  p.experts = p.ranks * (p.topk + *rc::gen::inRange(0, 9));
  p.tokens = *rc::gen::inRange(1, 60);
  const double fraction = *rc::gen::inRange(0, 1001) / 1000.0;
  const Routing routing = make_routing(spec_of("remote:" + std::to_string(fraction)), p).value();
  const double pairs = static_cast<double>(p.tokens * p.topk);
  RC_ASSERT(std::abs(routing.remote_share() - std::round(fraction * pairs) / pairs) < 1e-9);
}

TEST(Routing, SameSeedSameRoutingOtherSeedOther) {
  RoutingProblem p{64, 4, 2, 100, 7};
  const auto once = make_routing(spec_of("balanced"), p).value();
  EXPECT_EQ(once.ranks[1].experts, make_routing(spec_of("balanced"), p)->ranks[1].experts);
  EXPECT_NE(once.ranks[0].experts, once.ranks[1].experts);
  p.seed = 8;
  EXPECT_NE(once.ranks[1].experts, make_routing(spec_of("balanced"), p)->ranks[1].experts);
}

TEST(Routing, ZipfFollowsItsLawUnderOnePermutation) {
  // With k = 1 there is no replacement effect: the sorted counts follow 1/rank^S.
  const RoutingProblem p{16, 1, 2, 200000, 3};
  auto rows = make_routing(spec_of("zipf:1.2"), p)->rows();
  std::sort(rows.rbegin(), rows.rend());
  double norm = 0;
  for (int r = 1; r <= 16; ++r) norm += std::pow(r, -1.2);
  for (int r = 1; r <= 16; ++r)
    EXPECT_NEAR(static_cast<double>(rows[static_cast<std::size_t>(r - 1)]) / 400000,
                std::pow(r, -1.2) / norm, 0.004);
}

TEST(Routing, BalancedIsUniform) {
  const RoutingProblem p{128, 8, 2, 20000, 3};
  for (const auto rows : make_routing(spec_of("balanced"), p)->rows())
    EXPECT_NEAR(static_cast<double>(rows), 2500, 250);
}

TEST(Routing, RemoteRefusesWhatTheExpertsCannotGive) {
  const auto routing = make_routing(spec_of("remote:0.1"), {8, 8, 8, 10, 1});
  ASSERT_FALSE(routing.ok());
  EXPECT_NE(routing.error().allowed.find("remote:0.875"), std::string::npos);
  EXPECT_FALSE(make_routing(spec_of("remote:0.5"), {8, 2, 1, 10, 1}).ok());
  EXPECT_TRUE(make_routing(spec_of("remote:0"), {8, 2, 1, 10, 1}).ok());
}

TEST(Routing, BadSpecs) {
  for (const char* text : {"", "zipf", "zipf:", "zipf:-1", "zipf:nan", "zipf:inf", "zipf:1x",
                           "zipf:17", "remote:1.1", "remote:", "file:", "Balanced", "balanced:1"})
    EXPECT_FALSE(parse_routing(text).ok()) << text;
  EXPECT_FALSE(make_routing(spec_of("file:/nonexistent/x"), {8, 2, 2, 0, 1}).ok());
}

TEST(Routing, FileIsReadAndWrongLinesAreNamed) {
  std::istringstream good("# ids, weights\n0 3 0.5 0.5\r\n\n-1,-1,0,0\n1\t2 1e-3 2\n0 0 1 1\n");
  const auto routing = read_routing(good, {4, 2, 2, 0, 1}).value();
  EXPECT_EQ(routing.ranks[0].experts, (std::vector<std::int32_t>{0, 3, -1, -1}));
  EXPECT_EQ(routing.ranks[1].weights, (std::vector<float>{1e-3f, 2, 1, 1}));
  EXPECT_EQ(routing.rows(), (std::vector<std::int64_t>{3, 1, 1, 1}));
  const std::pair<const char*, const char*> bad[] = {
      {"0 4 1 1\n", "line 1, column 2 (token 0, slot 1)"},
      {"0 1 1 1\n0 -2 1 1\n", "line 2, column 2 (token 1, slot 1)"},
      {"0 1 1\n", "line 1"},
      {"0 1 nan 1\n", "line 1, column 3 (token 0, slot 0)"},
      {"0 1 1 x\n", "line 1, column 4 (token 0, slot 1)"},
      {"0 99999999999 1 1\n", "line 1, column 2 (token 0, slot 1)"},
      {"0 1 1 3e38\n", "line 1, column 4 (token 0, slot 1)"},
      {"0 1 -1000001 1\n", "line 1, column 3 (token 0, slot 0)"},
      {"0 1 inf 1\n", "line 1, column 3 (token 0, slot 0)"},
      {"0 1 1 1\n", "--routing"}};
  for (const auto& [text, field] : bad) {
    std::istringstream in(text);
    const auto read = read_routing(in, {4, 2, 2, 0, 1});
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().field, field);
  }
}

/// A file without an end: the same text again and again.
class Endless : public std::streambuf {
 public:
  explicit Endless(std::string text) : text_(std::move(text)) { rewind(); }

 protected:
  int_type underflow() override {
    rewind();
    return traits_type::to_int_type(text_[0]);
  }

 private:
  void rewind() { setg(text_.data(), text_.data(), text_.data() + text_.size()); }
  std::string text_;
};

TEST(Routing, FilesWithoutAnEndAreRefused) {
  const std::tuple<const char*, std::int64_t, const char*> cases[] = {
      {"0", 0, "line 1"},              // a line without an end
      {"0 1 1 1\n", 3, "--routing"}};  // more tokens than asked for
  for (const auto& [text, tokens, field] : cases) {
    Endless endless(text);
    std::istream in(&endless);
    const auto read = read_routing(in, {4, 2, 2, tokens, 1});
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().field, field);
  }
}

}  // namespace
}  // namespace xstage::shapes
