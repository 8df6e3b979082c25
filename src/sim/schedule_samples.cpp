// Reader of measured schedules: strict, so that a damaged file is an error and never a wrong
// figure.
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "xstage/sim/spin_kernel.hpp"

namespace xstage::sim {
namespace {

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t comma = line.find(',');
    std::string_view cell = line.substr(0, comma);
    while (!cell.empty() && cell.front() == ' ') cell.remove_prefix(1);
    while (!cell.empty() && cell.back() == ' ') cell.remove_suffix(1);
    cells.push_back(cell);
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

struct Range {
  double least, most;
  const char* text;
};
constexpr Range kTime{1e-6, 1e9, "a time above 0, up to 1e9 us"};
constexpr Range kPercent{0, 100, "0 to 100"};
constexpr Range kTiles{1, 32767, "1 to 32767"};

/// Where a cell stands, for messages.
std::string place(std::int64_t line, const char* column) {
  return "line " + std::to_string(line) + ", column " + column;
}

}  // namespace

Result<std::vector<ScheduleSample>> read_schedule_samples(std::istream& in) {
  std::vector<ScheduleSample> samples;
  std::map<std::string, std::size_t, std::less<>> columns;
  std::string line;
  std::int64_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(' ') == std::string::npos || line.front() == '#') continue;
    const auto cells = split(line);
    if (columns.empty()) {
      for (std::size_t i = 0; i < cells.size(); ++i) columns.emplace(cells[i], i);
      for (const char* const needed : {"remote_percent", "linear1_tile_us", "n1", "linear2_tile_us",
                                       "n2", "compute_us", "wave_us", "interleaved_us"})
        if (!columns.contains(needed))
          return bad_input("a column of measured schedules is missing", needed, "not there",
                           "a header that names it");
      continue;
    }
    std::optional<Error> error;
    const auto number_in = [&](const char* column, const Range& range, bool whole) {
      const std::size_t index = columns.find(column)->second;
      const std::string_view cell = index < cells.size() ? cells[index] : std::string_view();
      double value = 0;
      const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      const bool good = code == std::errc() && end == cell.data() + cell.size() &&
                        value >= range.least && value <= range.most &&
                        (!whole || value == std::floor(value));
      if (!good && !error)
        error = bad_input("a value of measured schedules is not allowed", place(number, column),
                          std::string(cell.substr(0, 40)), range.text);
      return good ? value : range.least;
    };
    ScheduleSample sample;
    const auto layer = columns.find("layer");
    if (layer != columns.end() && layer->second < cells.size()) sample.layer = cells[layer->second];
    sample.remote_percent = number_in("remote_percent", kPercent, false);
    sample.linear1_tile_us = number_in("linear1_tile_us", kTime, false);
    sample.linear2_tile_us = number_in("linear2_tile_us", kTime, false);
    sample.n1 = static_cast<std::int32_t>(number_in("n1", kTiles, true));
    sample.n2 = static_cast<std::int32_t>(number_in("n2", kTiles, true));
    sample.compute_us = number_in("compute_us", kTime, false);
    sample.wave_us = number_in("wave_us", kTime, false);
    sample.interleaved_us = number_in("interleaved_us", kTime, false);
    if (error) return *error;
    const double row_us = sample.n1 * sample.linear1_tile_us + sample.n2 * sample.linear2_tile_us;
    if (sample.compute_us < row_us / 2 || sample.compute_us > 1e5 * row_us)
      return bad_input("compute_us must hold between one row and 100000 rows",
                       place(number, "compute_us"), std::to_string(sample.compute_us),
                       std::to_string(row_us) + " us a row");
    samples.push_back(std::move(sample));
  }
  if (samples.empty())
    return bad_input("measured schedules hold no rows", "schedule samples", "empty",
                     "a header and at least one row");
  return samples;
}

}  // namespace xstage::sim
