// What a simulation did when: spans on one track a role, and the backlog over time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::sim {

enum class Role : std::uint8_t { kDispatch, kLoader, kMath, kEpilogue, kCombine };
std::string_view name(Role role);

enum class Activity : std::uint8_t {
  kLinear1,
  kLinear2,
  kAttention,
  kIssue,        ///< stores going out at their unloaded pace
  kStall,        ///< the rest of the issue: back-pressure
  kWaitTokens,   ///< for dispatched tokens
  kWaitLinear1,  ///< for the row's Linear-1
  kWaitBuffer,   ///< for a Linear-1 output buffer to be read
  kWaitStaging,  ///< for the stores of an earlier tile
  kPull,         ///< a row's tokens on their way
  kSlotSum
};
std::string_view name(Activity activity);

/// Times in µs. `sm` is -1 where a span belongs to the whole GPU.
struct Span {
  int rank = 0;
  int sm = -1;
  Role role = Role::kMath;
  Activity activity = Activity::kLinear1;
  double start_us = 0;
  double duration_us = 0;
  std::int64_t row = -1;
  std::int32_t column = -1;
};

/// Bytes in all queues of one GPU.
struct BacklogSeries {
  std::vector<double> time_us;
  std::vector<double> bytes;
};

struct TimelineOptions {
  std::vector<int> sms;             ///< SMs of each rank whose spans are kept
  std::size_t max_spans = 0;        ///< later spans are left out
  std::size_t backlog_samples = 0;  ///< at most, a rank; 0: none
};

struct Timeline {
  std::vector<Span> spans;
  std::vector<BacklogSeries> backlog;  ///< a rank
  bool spans_left_out = false;
};

/// Collects a timeline while a simulation runs.
class Recorder {
 public:
  Recorder(const TimelineOptions& options, int ranks);

  bool keeps(int sm) const {
    return sm >= 0 && sm < static_cast<int>(kept_.size()) && kept_[static_cast<std::size_t>(sm)];
  }
  void add(const Span& span);

  /// Whether a backlog sample is due at `time`.
  bool due(double time) const { return options_.backlog_samples > 0 && time >= next_sample_; }
  /// Adds one sample of every rank; thins the series out by half when it is full.
  void sample(double time, const std::vector<double>& bytes);

  Timeline take() { return std::move(timeline_); }

 private:
  TimelineOptions options_;
  std::vector<bool> kept_;
  double next_sample_ = 0;
  double step_ = 0.25;
  Timeline timeline_;
};

/// The timeline as Chrome trace-event JSON, which Perfetto opens: a process a rank, a track a role
/// of each SM, a counter for the backlog. `title` names the run.
std::string chrome_trace(const Timeline& timeline, std::string_view title);

}  // namespace xstage::sim
