#include "xstage/sim/timeline.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace xstage::sim {

std::string_view name(Role role) {
  switch (role) {
    case Role::kDispatch: return "dispatch";
    case Role::kLoader: return "loader";
    case Role::kMath: return "math";
    case Role::kEpilogue: return "epilogue";
    case Role::kCombine: return "combine";
  }
  return "";
}

std::string_view name(Activity activity) {
  switch (activity) {
    case Activity::kLinear1: return "Linear-1";
    case Activity::kLinear2: return "Linear-2";
    case Activity::kAttention: return "attention";
    case Activity::kIssue: return "issue";
    case Activity::kStall: return "stall";
    case Activity::kWaitTokens: return "wait for tokens";
    case Activity::kWaitLinear1: return "wait for Linear-1";
    case Activity::kWaitBuffer: return "wait for a buffer";
    case Activity::kWaitStaging: return "wait for staging";
    case Activity::kPull: return "dispatch";
    case Activity::kSlotSum: return "slot sum";
  }
  return "";
}

Recorder::Recorder(const TimelineOptions& options, int ranks) : options_(options) {
  for (const int sm : options.sms) {
    if (sm < 0) continue;
    if (static_cast<std::size_t>(sm) >= kept_.size())
      kept_.resize(static_cast<std::size_t>(sm) + 1);
    kept_[static_cast<std::size_t>(sm)] = true;
  }
  if (options.backlog_samples > 0) timeline_.backlog.resize(static_cast<std::size_t>(ranks));
}

void Recorder::add(const Span& span) {
  if (span.duration_us <= 0) return;
  if (timeline_.spans.size() >= options_.max_spans) {
    timeline_.spans_left_out = true;
    return;
  }
  timeline_.spans.push_back(span);
}

void Recorder::sample(double time, const std::vector<double>& bytes) {
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    BacklogSeries& series = timeline_.backlog[rank];
    if (series.time_us.size() >= options_.backlog_samples) {
      for (std::size_t i = 0; 2 * i < series.time_us.size(); ++i) {
        series.time_us[i] = series.time_us[2 * i];
        series.bytes[i] = series.bytes[2 * i];
      }
      series.time_us.resize((series.time_us.size() + 1) / 2);
      series.bytes.resize(series.time_us.size());
      if (rank == 0) step_ *= 2;
    }
    series.time_us.push_back(time);
    series.bytes.push_back(bytes[rank]);
  }
  next_sample_ = time + step_;
}

std::string chrome_trace(const Timeline& timeline, std::string_view title) {
  std::string out;
  auto at = std::back_inserter(out);
  fmt::format_to(at,
                 "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"title\":{}}},\"traceEvents\":[",
                 nlohmann::json(title).dump());
  bool first = true;
  const auto next = [&] {
    if (!first) out += ',';
    out += '\n';
    first = false;
  };
  const auto track = [](const Span& span) {
    return (span.sm + 1) * 8 + static_cast<int>(span.role);
  };
  std::set<int> ranks;
  std::set<std::tuple<int, int>> tracks;
  for (const Span& span : timeline.spans) {
    if (ranks.insert(span.rank).second) {
      next();
      fmt::format_to(
          at,
          "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":\"rank "
          "{}\"}}}}",
          span.rank, span.rank);
    }
    if (tracks.emplace(span.rank, track(span)).second) {
      const std::string where = span.sm < 0 ? "" : fmt::format("SM {} ", span.sm);
      next();
      fmt::format_to(
          at,
          "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":"
          "\"{}{}\"}}}}",
          span.rank, track(span), where, name(span.role));
    }
    next();
    fmt::format_to(
        at, "{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.4f},\"dur\":{:.4f}",
        name(span.activity), span.rank, track(span), span.start_us, span.duration_us);
    if (span.row >= 0)
      fmt::format_to(at, ",\"args\":{{\"row\":{},\"column\":{}}}", span.row, span.column);
    out += '}';
  }
  for (std::size_t rank = 0; rank < timeline.backlog.size(); ++rank) {
    const BacklogSeries& series = timeline.backlog[rank];
    for (std::size_t i = 0; i < series.time_us.size(); ++i) {
      next();
      fmt::format_to(
          at,
          "{{\"ph\":\"C\",\"name\":\"backlog\",\"pid\":{},\"ts\":{:.4f},\"args\":{{\"bytes\":"
          "{:.0f}}}}}",
          rank, series.time_us[i], series.bytes[i]);
    }
  }
  out += "\n]}\n";
  return out;
}

}  // namespace xstage::sim
