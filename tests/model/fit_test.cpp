// The fit: on the measurements that ship with the project, on samples made by the model itself, and
// on samples that do not hold what it looks for.
#include "xstage/model/fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace xstage::model {
namespace {

const std::string kData = std::string(XSTAGE_SOURCE_DIR) + "/data/h200x2/";

const SampleSet& measured() {
  static const SampleSet set = [] {
    SampleSet all;
    for (const char* file :
         {"window_samples.csv", "remote_store_samples.csv", "per_sm_bursts.csv", "sm_groups.json"})
      all.merge(read_samples(std::filesystem::path(kData + file)).value());
    return all;
  }();
  return set;
}

struct Figures {
  std::vector<double> period;
  std::vector<double> issue;
  std::vector<double> isolated;
  std::vector<double> coupled;
};

/// 16-byte stores, remote, one way.
Figures figures(const std::vector<PointError>& errors) {
  Figures out;
  for (const PointError& e : errors) {
    if (e.sample->mechanism != Mechanism::kStoreV4 || e.sample->both_ways) continue;
    if (e.sample->experiment == Experiment::kWindow) {
      out.period.push_back(e.period_fraction);
      out.issue.push_back(e.issue_us);
      out.coupled.push_back(e.coupled_period_fraction);
    } else if (e.beyond_knee) {
      out.isolated.push_back(e.issue_us);
    }
  }
  return out;
}

void expect_goal(const Figures& f, std::size_t windowed, std::size_t isolated_bursts) {
  const ErrorSummary period = summarise(f.period);
  const ErrorSummary issue = summarise(f.issue);
  const ErrorSummary burst = summarise(f.isolated);
  EXPECT_GE(f.period.size(), windowed);
  EXPECT_LE(period.median, 0.0025);
  EXPECT_LE(period.p95, 0.012);
  EXPECT_LE(issue.median, 0.015);
  EXPECT_LE(issue.p95, 0.12);
  EXPECT_GE(f.isolated.size(), isolated_bursts);
  EXPECT_LE(burst.median, 0.2);
  EXPECT_LE(burst.p95, 0.7);
}

class Folds : public testing::TestWithParam<FoldBy> {};

TEST_P(Folds, UnseenValuesArePredictedAsGoalsAsk) {
  const auto folds = cross_validate(measured(), GetParam());
  ASSERT_TRUE(folds.ok()) << folds.error().message();
  std::vector<PointError> all;
  for (const Fold& fold : *folds) all.insert(all.end(), fold.errors.begin(), fold.errors.end());
  expect_goal(figures(all), 890, 90);
}
INSTANTIATE_TEST_SUITE_P(Values, Folds, testing::Values(FoldBy::kBytes, FoldBy::kProducers),
                         [](const auto& test) {
                           return test.param == FoldBy::kBytes ? "Bytes" : "Producers";
                         });

TEST(Fit, FindsWhatWasMeasuredByHand) {
  const auto report = fit(measured());
  ASSERT_TRUE(report.ok()) << report.error().message();
  const Profile& p = report->profile;
  EXPECT_NEAR(p.drain.one_way_gb_s, 373.5, 1.0);
  ASSERT_TRUE(p.drain.both_ways_gb_s.has_value());
  EXPECT_NEAR(*p.drain.both_ways_gb_s, 368.5, 1.5);
  EXPECT_EQ(p.node.sms, 132);
  EXPECT_NEAR(p.node.sm_clock_ghz, 1.98, 1e-9);
  const MechanismProfile& m = *p.find(Mechanism::kStoreV4, 256).value();
  EXPECT_NEAR(m.sm_rate_gb_s, 50.7, 0.3);
  ASSERT_TRUE(m.loop && m.capacity);
  EXPECT_GT(m.loop->residue_bytes, 4000);
  EXPECT_LT(m.loop->residue_bytes, 5500);
  EXPECT_NEAR(capacity_bytes(m, *m.capacity, p.classes(132), 65536) / 1e6, 3.0, 0.3);
  const MechanismProfile& tma = *p.find(Mechanism::kTmaBulk, 0).value();
  EXPECT_EQ(tma.loop->residue_bytes, 0) << "bulk stores leave nothing in the SM";
  // What the maximum law explains, the completion-coupled law misses by half.
  EXPECT_GT(summarise(figures(errors(p, measured().samples)).coupled).p95, 0.4);
}

TEST(Fit, SharesOfSmsInSmallAndLargeGroups) {
  const Profile p = fit(measured())->profile;
  const auto prediction = predict(p, {132, 32768, 0, Mechanism::kStoreV4, 256, false, 1});
  ASSERT_TRUE(prediction.ok());
  ASSERT_EQ(prediction->groups.size(), 2u);
  double issue[7] = {};
  int count[7] = {};
  std::vector<int> size_of(132, 0);
  // The bursts were measured on a GPU of which 24 SMs ran 1.5 times as fast; they tell themselves.
  double total = 0;
  std::vector<const SmBursts*> rows;
  for (const SmBursts& b : measured().sm_bursts)
    if (b.producers == 132 && b.threads == 256 && b.bytes == 32768 && b.gap_us == 0 &&
        b.mechanism == Mechanism::kStoreV4) {
      rows.push_back(&b);
      total += static_cast<double>(b.bursts);
    }
  ASSERT_EQ(rows.size(), 132u);
  for (const SmBursts* b : rows) {
    const int size = static_cast<double>(b->bursts) > 1.2 * total / 132 ? 4 : 6;
    issue[size] += b->issue_us;
    ++count[size];
  }
  EXPECT_EQ(count[4], 24);
  for (const GroupPrediction& g : prediction->groups)
    EXPECT_NEAR(g.issue_us / (issue[g.sms] / count[g.sms]), 1, 0.05) << g.sms << " SMs a group";
}

/// Samples that the model itself makes: a fit to them must give back its parameters.
TEST(Fit, RecoversTheParametersOfItsOwnSamples) {
  const Profile truth = fit(measured())->profile;
  SampleSet made;
  made.sm_groups = measured().sm_groups;
  made.sm_bursts = measured().sm_bursts;
  for (Sample s : measured().samples) {
    if (s.mechanism != Mechanism::kStoreV4 || !s.remote || s.both_ways || s.threads != 256)
      continue;
    const Prediction p =
        predict(truth, {s.producers, s.bytes, s.gap_us, s.mechanism, s.threads}).value();
    const bool windowed = s.experiment == Experiment::kWindow;
    if (!windowed && s.experiment != Experiment::kIsolated) continue;
    if (windowed) s.period_us = p.period_us;
    s.issue_us = windowed ? p.issue_us : *p.isolated_issue_us;
    const double issue0 = windowed ? p.issue0_us : p.isolated_issue0_us;
    s.issue_p05_us = issue0;
    s.issue_p50_us = s.issue_us;
    s.issue_p95_us = s.issue_us > 1.001 * issue0 ? 2 * s.issue_us : s.issue_us;
    made.samples.push_back(s);
  }
  const auto report = fit(made);
  ASSERT_TRUE(report.ok()) << report.error().message();
  const Profile& p = report->profile;
  EXPECT_NEAR(p.drain.one_way_gb_s / truth.drain.one_way_gb_s, 1, 0.001);
  const MechanismProfile& m = *p.find(Mechanism::kStoreV4, 256).value();
  const MechanismProfile& t = *truth.find(Mechanism::kStoreV4, 256).value();
  EXPECT_NEAR(m.loop->residue_bytes / t.loop->residue_bytes, 1, 0.02);
  EXPECT_EQ(m.loop->residue_shape, t.loop->residue_shape);
  // One thread count alone cannot tell the last pass from the rest: their sum is what counts.
  EXPECT_NEAR(capacity_bytes(m, *m.capacity, p.classes(132), 65536) /
                  capacity_bytes(t, *t.capacity, truth.classes(132), 65536),
              1, 0.02);
  EXPECT_NEAR(m.capacity->group_bytes / t.capacity->group_bytes, 1, 0.05);
  EXPECT_LT(p.quality.windowed_period.p95, 0.002);
}

TEST(Fit, OtherThreadCountsBorrowTheLoopAndKeepTheirOwnS) {
  const Profile p = fit(measured())->profile;
  const MechanismProfile& own = *p.find(Mechanism::kStoreV4, 256).value();
  for (const int threads : {128, 1024}) {
    const MechanismProfile& m = *p.find(Mechanism::kStoreV4, threads).value();
    ASSERT_TRUE(m.loop.has_value()) << threads;
    EXPECT_EQ(m.loop->gap_overhead_us, own.loop->gap_overhead_us);
    EXPECT_NEAR(m.loop->residue_bytes - own.loop->residue_bytes, 16.0 * (threads - 256), 1e-6);
    EXPECT_NE(m.undetermined.back().find("taken from 256 threads"), std::string::npos);
  }
  // The one windowed run of 1024 threads was not used for that.
  const auto one = predict(p, {132, 32768, 0, Mechanism::kStoreV4, 1024});
  for (const Sample& s : measured().samples)
    if (s.experiment == Experiment::kWindow && s.threads == 1024) {
      EXPECT_NEAR(one->issue_us, s.issue_us, 0.5);
      EXPECT_NEAR(one->period_us / s.period_us, 1, 0.005);
    }
}

SampleSet only(bool (*keep)(const Sample&)) {
  SampleSet set = measured();
  std::erase_if(set.samples, [&](const Sample& s) { return !keep(s); });
  return set;
}

TEST(Fit, SamplesWithoutAKneeLeaveTheCapacityOpen) {
  const auto report = fit(only(
      [](const Sample& s) { return s.experiment == Experiment::kWindow || s.bytes <= 16384; }));
  ASSERT_TRUE(report.ok()) << report.error().message();
  const MechanismProfile& m = *report->profile.find(Mechanism::kStoreV4, 256).value();
  EXPECT_FALSE(m.capacity.has_value());
  ASSERT_FALSE(m.undetermined.empty());
  EXPECT_NE(m.undetermined.back().find("Q"), std::string::npos);
  const auto p = predict(report->profile, {132, 65536, 5, Mechanism::kStoreV4, 256});
  ASSERT_TRUE(p.ok());
  EXPECT_FALSE(p->capacity_bytes || p->isolated_issue_us || p->burst_fits);
  EXPECT_FALSE(p->warnings.empty());
}

TEST(Fit, OneProducerCountIsNotExtrapolatedSilently) {
  const auto report = fit(only([](const Sample& s) {
    return s.experiment == Experiment::kWindow || s.producers == 132 || s.bytes <= 20480;
  }));
  ASSERT_TRUE(report.ok()) << report.error().message();
  const MechanismProfile& m = *report->profile.find(Mechanism::kStoreV4, 256).value();
  ASSERT_TRUE(m.capacity.has_value());
  EXPECT_EQ(m.capacity->producers, std::vector<int>{132});
  const auto at = [&](int producers) {
    return predict(report->profile, {producers, 65536, 5, Mechanism::kStoreV4, 256})->warnings;
  };
  EXPECT_TRUE(at(132).empty()) << at(132)[0];
  ASSERT_EQ(at(66).size(), 1u);
  EXPECT_NE(at(66)[0].find("extrapolated"), std::string::npos);
}

/// windowed samples read from a file, so that they have lines
SampleSet windowed_file() {
  return read_samples(std::filesystem::path(kData + "window_samples.csv")).value();
}

TEST(Fit, OneSlipOfMeasuringIsNamedAndLeftOut) {
  const Profile clean = fit(windowed_file())->profile;
  for (const double factor : {1e9, 0.5}) {
    for (const std::size_t row : {std::size_t{500}, std::size_t{990}}) {
      SampleSet set = windowed_file();
      set.samples[row].period_us *= factor;
      const auto report = fit(set);
      ASSERT_TRUE(report.ok()) << factor << ", row " << row << ": " << report.error().message();
      EXPECT_NEAR(report->profile.drain.one_way_gb_s, clean.drain.one_way_gb_s, 0.5);
      EXPECT_LT(report->profile.quality.windowed_period.p95, 0.02);
      const auto& notes = report->profile.notes;
      EXPECT_TRUE(std::any_of(notes.begin(), notes.end(),
                              [&](const std::string& note) {
                                return note.find("line " + std::to_string(set.samples[row].line)) !=
                                       std::string::npos;
                              }))
          << factor << ", row " << row;
      for (const MechanismProfile& m : report->profile.mechanisms) {
        if (m.threads == 1024) continue;  // one windowed run: nothing tells its slip
        EXPECT_LT(m.loop->without_gap.back().us, 1) << name(m.mechanism) << m.threads;
        EXPECT_LT(m.loop->gap_overhead_us, 1);
      }
    }
  }
}

TEST(Fit, ContendedRunsAreNoFloorOfTheLoop) {
  SampleSet set = windowed_file();
  std::erase_if(set.samples, [](const Sample& s) { return s.producers != 132; });
  const auto report = fit(set);
  ASSERT_TRUE(report.ok()) << report.error().message();
  const MechanismProfile& m = *report->profile.find(Mechanism::kStoreV4, 256).value();
  EXPECT_GT(m.loop->residue_bytes, 3000);
  EXPECT_TRUE(
      std::any_of(m.undetermined.begin(), m.undetermined.end(), [](const std::string& what) {
        return what.find("the loop's own cost") != std::string::npos;
      }));
  const Profile all = fit(measured())->profile;
  for (const int producers : {4, 16, 66}) {
    const auto from_some =
        predict(report->profile, {producers, 32768, 0, Mechanism::kStoreV4, 256});
    const auto from_all = predict(all, {producers, 32768, 0, Mechanism::kStoreV4, 256});
    EXPECT_NEAR(from_some->period_us / from_all->period_us, 1, producers == 4 ? 0.3 : 0.1)
        << producers;
  }
}

TEST(Fit, RateThatIsNeverReachedIsRefused) {
  const auto report = fit(only(
      [](const Sample& s) { return s.experiment == Experiment::kWindow && s.producers <= 4; }));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().kind, ErrorKind::kPoorFit);
  EXPECT_NE(report.error().message().find("R is not determined"), std::string::npos);
}

TEST(Fit, EveryFileAloneFitsOrSaysWhy) {
  for (const char* file : {"window_samples.csv", "remote_store_samples.csv"}) {
    const auto report = fit(read_samples(std::filesystem::path(kData + file)).value());
    ASSERT_TRUE(report.ok()) << file << ": " << report.error().message();
    EXPECT_NEAR(report->profile.drain.one_way_gb_s, 373.5, 1.5) << file;
    EXPECT_FALSE(report->profile.notes.empty()) << file;
  }
  for (const char* file : {"per_sm_bursts.csv", "sm_groups.json", "sm_groups_raw.csv"}) {
    const auto set = read_samples(std::filesystem::path(kData + file));
    ASSERT_TRUE(set.ok()) << set.error().message();
    EXPECT_FALSE(fit(*set).ok()) << file;
  }
}

TEST(Groups, RawRunsGiveTheGroupsFoundByHand) {
  const auto raw = read_samples(std::filesystem::path(kData + "sm_groups_raw.csv"));
  ASSERT_TRUE(raw.ok()) << raw.error().message();
  const SampleSet& known = measured();
  ASSERT_EQ(raw->sm_groups.size(), known.sm_groups.size());
  for (std::size_t i = 0; i < known.sm_groups.size(); ++i) {
    EXPECT_EQ(raw->sm_groups[i].gpu, known.sm_groups[i].gpu);
    EXPECT_EQ(raw->sm_groups[i].groups, known.sm_groups[i].groups);
  }
}

TEST(Profile, SurvivesItsOwnJson) {
  const Profile p = fit(measured())->profile;
  const nlohmann::json document = to_json(p);
  const auto again = profile_from_json(document);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(to_json(*again), document);
  EXPECT_EQ(predict(*again, {99, 49152, 3})->issue_us, predict(p, {99, 49152, 3})->issue_us);
}

// profiles/h200-nv18-x2.json is the profile of results/h200x2, and that is what its samples give.
TEST(Profile, TheShippedOneIsWhatItsSamplesGive) {
  const std::string root = XSTAGE_SOURCE_DIR;
  const auto shipped = load_profile(root + "/profiles/h200-nv18-x2.json");
  ASSERT_TRUE(shipped.ok()) << shipped.error().message();
  const auto beside = load_profile(root + "/results/h200x2/h200-nv18-x2.json");
  ASSERT_TRUE(beside.ok()) << beside.error().message();
  EXPECT_EQ(to_json(*shipped), to_json(*beside));
  SampleSet set;
  for (const char* file :
       {"samples.csv", "samples_bursts.csv", "samples_per_sm.csv", "samples_groups.csv"})
    set.merge(read_samples(std::filesystem::path(root + "/results/h200x2/" + file)).value());
  const Profile fresh = fit(set)->profile;
  EXPECT_NEAR(shipped->drain.one_way_gb_s, fresh.drain.one_way_gb_s, 0.01);
  for (const Workload& w :
       {Workload{99, 49152, 3}, Workload{132, 65536, 15}, Workload{33, 24576, 9}}) {
    const Prediction of_shipped = predict(*shipped, w).value(),
                     of_fresh = predict(fresh, w).value();
    EXPECT_NEAR(of_shipped.issue_us, of_fresh.issue_us, 1e-3 * of_fresh.issue_us);
    EXPECT_NEAR(*of_shipped.isolated_issue_us, *of_fresh.isolated_issue_us,
                1e-3 * *of_fresh.isolated_issue_us);
  }
}

// What calibrate drew at random and did not fit, against the goals; and the onset of back-pressure.
TEST(Profile, TheShippedOnePredictsUnseenPoints) {
  const std::string root = XSTAGE_SOURCE_DIR;
  const Profile shipped = load_profile(root + "/profiles/h200-nv18-x2.json").value();
  SampleSet set;
  for (const char* file : {"samples_unseen.csv", "samples_unseen_bursts.csv"})
    set.merge(read_samples(std::filesystem::path(root + "/results/h200x2/" + file)).value());
  expect_goal(figures(errors(shipped, set.samples)), 200, 60);
  std::ifstream file(root + "/results/h200x2/calibration.json");
  const nlohmann::json found = nlohmann::json::parse(file);
  ASSERT_EQ(found["onset"]["rows"].size(), 4u);
  for (const auto& row : found["onset"]["rows"]) {
    const auto felt = [&](std::int64_t bytes) {
      const Prediction p =
          predict(shipped, {row["producers"].get<int>(), bytes, 1000, Mechanism::kStoreV4, 256})
              .value();
      return *p.isolated_issue_us > 1.1 * p.isolated_issue0_us;
    };
    const auto measured = row["bytes"].get<std::int64_t>();
    EXPECT_TRUE(felt(measured * 105 / 100 / 256 * 256)) << row.dump();
    EXPECT_FALSE(felt(measured * 95 / 100 / 256 * 256)) << row.dump();
  }
}

TEST(Profile, RefusesEveryKeyOfAnotherType) {
  const nlohmann::json good = to_json(fit(measured())->profile);
  // Every value in turn becomes something it must not be; no crash, an error or an unused key.
  const nlohmann::json flat = good.flatten();
  int refused = 0;
  int tried = 0;
  for (const auto& [path, value] : flat.items()) {
    if (++tried % 7 != 0) continue;
    for (const nlohmann::json& bad : {nlohmann::json("text"), nlohmann::json(-1e300),
                                      nlohmann::json::object(), nlohmann::json(1e30)}) {
      nlohmann::json document = good;
      document[nlohmann::json::json_pointer(path)] = bad;
      const auto result = profile_from_json(document);
      if (!result) {
        ++refused;
        EXPECT_FALSE(result.error().message().empty());
      }
    }
  }
  EXPECT_GT(refused, 3 * tried / 7);
  nlohmann::json older = good;
  older["format"] = "xstage.profile/0";
  const auto result = profile_from_json(older);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message().find("another version"), std::string::npos);
}

TEST(Samples, BadFilesAreRefusedWithTheirPlace) {
  const std::string header =
      "experiment,mechanism,target,direction,producers,threads,bytes,chunk,gap_us,window_us,"
      "bursts_total,period_aggregate,period_p05,period_p50,period_p95,issue_p05,issue_p50,"
      "issue_mean,issue_p95\n";
  const std::string row =
      "window,st_v4,remote,uni,4,256,4096,0,0.0000,450.0,6516,0.2762,0.2762,0.2762,0.2762,0.0803,"
      "0.0803,0.0803,0.0803\n";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = row;
    changed.replace(changed.find(from), from.size(), to);
    return header + row + changed;
  };
  const struct {
    const char* what;
    std::string text;
    const char* expected;
  } table[] = {
      {"empty", "", "is empty"},
      {"comment only", "# nothing\n", "is empty"},
      {"header only", header, "no samples"},
      {"missing column", "experiment,mechanism\nwindow,st_v4\n", "missing"},
      {"column twice", "bytes,bytes\n1,2\n", "twice"},
      {"short row", header + "window,st_v4\n", "line 2"},
      {"text in a number", with("256", "many"), "line 3, column threads"},
      {"NaN", with("0.2762", "nan"), "line 3, column period_aggregate"},
      {"infinity", with("0.0803,0.0803,0.0803,0.0803", "0.1,0.1,inf,0.1"), "issue_mean"},
      {"negative time", with("0.0000", "-1.0"), "line 3, column gap_us"},
      {"zero bytes", with("4096", "0"), "line 3, column bytes"},
      {"huge bytes", with("4096", "99999999999999999999"), "column bytes"},
      {"odd bytes", with("4096", "4097"), "multiple of 4"},
      {"no producers", with(",4,256", ",0,256"), "column producers"},
      {"unknown mechanism", with("st_v4", "st_v9"), "st_v1, st_v2, st_v4, tma_bulk"},
      {"unknown target", with("remote", "nowhere"), "remote or local"},
      {"zero period", with("6516,0.2762", "6516,0"), "period_aggregate"},
      {"binary", std::string("a,b\0c\n", 6), "no text table"},
      {"broken JSON", "{\"gpus\": [", "SM groups"},
      {"JSON of another kind", "{\"gpus\": [{\"gpu\": 0, \"groups\": [[\"x\"]]}]}", "groups"},
      {"raw groups cut short", "0,-1,5,5,5\n0,0,0,6,6\n", "lacks runs"},
      {"raw groups with text", "0,-1,5,x,5\n", "column 4"},
  };
  for (const auto& c : table) {
    std::istringstream in(c.text);
    const auto result = read_samples(in, "samples.csv");
    ASSERT_FALSE(result.ok()) << c.what;
    EXPECT_EQ(result.error().kind, ErrorKind::kBadInput) << c.what;
    EXPECT_NE(result.error().message().find(c.expected), std::string::npos)
        << c.what << ": " << result.error().message();
  }
}

TEST(Samples, WindowsLineEndsCommentsAndExtraColumnsAreFine) {
  std::istringstream in(
      "\xEF\xBB\xBF# a node; SM clock measured 1.5000 GHz\r\n"
      "mechanism,target,direction,producers,threads,bytes,chunk,gap_us,period_aggregate,issue_p05,"
      "issue_p50,issue_mean,issue_p95,more\r\n"
      "st_v4,remote,uni, 4 ,256,4096,0,0.5,0.2762,0.08,0.08,0.08,0.08,anything\r\n\r\n");
  const auto set = read_samples(in, "samples.csv");
  ASSERT_TRUE(set.ok()) << set.error().message();
  ASSERT_EQ(set->samples.size(), 1u);
  EXPECT_EQ(set->samples[0].producers, 4);
  EXPECT_EQ(set->samples[0].experiment, Experiment::kWindow);
  EXPECT_EQ(set->comments.size(), 1u);
}

TEST(Samples, AMillionRows) {
  std::ostringstream text;
  text << "mechanism,target,direction,producers,threads,bytes,chunk,gap_us,period_aggregate,"
          "issue_p05,issue_p50,issue_mean,issue_p95\n";
  for (int i = 0; i < 1'000'000; ++i)
    text << "st_v4,remote,uni,4,256,4096,0,0.5,0.2762,0.08,0.08,0.08,0.08\n";
  std::istringstream in(text.str());
  const auto set = read_samples(in, "samples.csv");
  ASSERT_TRUE(set.ok()) << set.error().message();
  EXPECT_EQ(set->samples.size(), 1'000'000u);
}

}  // namespace
}  // namespace xstage::model
