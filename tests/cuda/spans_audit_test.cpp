// Spans from other people's kernels: what is refused, and what the audit says.
#include "cli/spans_audit.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace xstage::cli {
namespace {

using nlohmann::json;

class SpansAudit : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    const auto path =
        std::filesystem::path(::testing::TempDir()) /
        (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".json");
    std::ofstream(path) << text;
    return path;
  }

  /// 132 blocks, 20 bursts each, of `issue` µs every `period` µs.
  json spans(double issue, double period) const {
    json out{{"format", "xstage.spans/1"},
             {"kernel", "k"},
             {"gpu", 0},
             {"sm_clock_ghz", 1.98},
             {"bytes", 32768},
             {"mechanism", "st_v4"},
             {"threads", 256},
             {"both_ways", false},
             {"dropped", 0},
             {"blocks", json::array()}};
    for (int b = 0; b < 132; ++b) {
      json block{{"block", b}, {"sm", b}, {"start_us", json::array()}, {"issue_us", json::array()}};
      for (int i = 0; i < 20; ++i) {
        block["start_us"].push_back(i * period);
        block["issue_us"].push_back(issue);
      }
      out["blocks"].push_back(block);
    }
    return out;
  }

  model::Profile profile_ =
      model::load_profile(XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json").value();
};

TEST_F(SpansAudit, AKernelThatTheLinkKeepsUpWith) {
  const auto read = read_spans(write(spans(0.45, 30).dump()));
  ASSERT_TRUE(read);
  const auto audit = audit_spans(*read, profile_);
  ASSERT_TRUE(audit);
  EXPECT_EQ((*audit)["producers"], 132);
  EXPECT_NEAR((*audit)["gap_us"]["mean"].get<double>(), 29.55, 1e-6);
  EXPECT_NEAR((*audit)["rate_gb_per_s"].get<double>(), 132 * 32768 / 30e3, 0.1);
  EXPECT_NE((*audit)["hints"].dump().find("keeps up"), std::string::npos);
}

TEST_F(SpansAudit, AKernelThatTheLinkLimits) {
  const auto read = read_spans(write(spans(6.5, 11.6).dump()));
  ASSERT_TRUE(read);
  const auto audit = audit_spans(*read, profile_);
  ASSERT_TRUE(audit);
  EXPECT_EQ((*audit)["predicted"]["regime"], "drain-limited");
  EXPECT_GT((*audit)["stall_fraction"].get<double>(), 0.4);
  EXPECT_NEAR((*audit)["predicted"]["issue_us"].get<double>(), 6.5, 0.7);
  EXPECT_NE((*audit)["hints"].dump().find("the link is the limit"), std::string::npos);
}

TEST_F(SpansAudit, WhatIsNoFileOfSpansIsRefusedWithItsField) {
  struct Case {
    const char* field;
    std::function<void(json&)> spoil;
  };
  const std::vector<Case> cases{
      {"format", [](json& d) { d["format"] = "xstage.spans/9"; }},
      {"bytes", [](json& d) { d["bytes"] = 0; }},
      {"bytes", [](json& d) { d["bytes"] = "many"; }},
      {"threads", [](json& d) { d.erase("threads"); }},
      {"mechanism", [](json& d) { d["mechanism"] = "st_v3"; }},
      {"blocks", [](json& d) { d["blocks"] = json::array(); }},
      {"start_us", [](json& d) { d["blocks"][0]["start_us"][1] = -1.0; }},
      {"issue_us", [](json& d) { d["blocks"][0]["issue_us"].erase(0); }},
      {"issue_us", [](json& d) { d["blocks"][3]["issue_us"] = "none"; }},
  };
  for (const Case& one : cases) {
    json document = spans(0.4, 20);
    one.spoil(document);
    const auto read = read_spans(write(document.dump()));
    ASSERT_FALSE(read) << one.field;
    EXPECT_EQ(read.error().kind, ErrorKind::kBadInput);
    EXPECT_EQ(read.error().field, one.field);
  }
  EXPECT_FALSE(read_spans(write("{not json")));
  EXPECT_FALSE(read_spans("/nowhere/at/all.json"));
}

TEST_F(SpansAudit, OneBurstABlockHasNoGap) {
  json document = spans(0.4, 20);
  for (json& block : document["blocks"]) {
    block["start_us"] = {1.0};
    block["issue_us"] = {0.4};
  }
  const auto audit = audit_spans(read_spans(write(document.dump())).value(), profile_);
  ASSERT_TRUE(audit);
  EXPECT_TRUE((*audit)["predicted"].is_null());
}

}  // namespace
}  // namespace xstage::cli
