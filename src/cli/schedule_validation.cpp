#include "cli/schedule_validation.hpp"

#include <fmt/format.h>

#include "xstage/input_file.hpp"
#include "xstage/sim/from_profile.hpp"
#include "xstage/sim/spin_kernel.hpp"

namespace xstage::cli {

using nlohmann::json;

json validate_schedule_samples(const model::Profile& profile, const std::string& file) {
  std::ifstream in = open_input(file, "--schedule-samples").value();
  const auto samples = sim::read_schedule_samples(in).value();
  // The kernel stores 16 bytes a thread from 256 threads, a tile of 128 x 128 bf16, on both GPUs.
  sim::StoreOptions options;
  options.threads = 256;
  const sim::StoreModel store = sim::store_model(profile, options).value();
  sim::ScheduleSampleKernel kernel;
  kernel.issue_us = store.issue_us(32768);
  kernel.residual = store.residual;
  const sim::ScheduleValidation v = sim::validate_schedules(store.fabric[0], kernel, samples);
  json rows = {{"label", json::array()},
               {"measured_speedup", json::array()},
               {"simulated_speedup", json::array()},
               {"measured_wave_us", json::array()},
               {"simulated_wave_us", json::array()},
               {"measured_interleaved_us", json::array()},
               {"simulated_interleaved_us", json::array()}};
  for (const sim::ScheduleComparison& row : v.rows) {
    rows["label"].push_back(
        fmt::format("{}, {:g} % remote", row.sample.layer, row.sample.remote_percent));
    rows["measured_speedup"].push_back(row.sample.wave_us / row.sample.interleaved_us);
    rows["simulated_speedup"].push_back(row.speedup());
    rows["measured_wave_us"].push_back(row.sample.wave_us);
    rows["simulated_wave_us"].push_back(row.wave_us);
    rows["measured_interleaved_us"].push_back(row.sample.interleaved_us);
    rows["simulated_interleaved_us"].push_back(row.interleaved_us);
  }
  return {{"n", v.rows.size()},
          {"speedup", {{"mean", v.speedup_mean}, {"worst", v.speedup_worst}}},
          {"time_fraction", {{"mean", v.time_mean}, {"worst", v.time_worst}}},
          {"rows", std::move(rows)}};
}

void print_schedule_validation(const Console& console, const json& schedule) {
  const json& rows = schedule.at("rows");
  console.text(
      fmt::format("{:<28} {:>22} {:>22}", "schedules: measured, simulated", "speed-up", "wave us"));
  for (std::size_t i = 0; i < rows.at("label").size(); ++i)
    console.text(fmt::format(
        "{:<28} {:>10.3f} {:>10.3f}  {:>10.0f} {:>10.0f}", rows["label"][i].get<std::string>(),
        rows["measured_speedup"][i].get<double>(), rows["simulated_speedup"][i].get<double>(),
        rows["measured_wave_us"][i].get<double>(), rows["simulated_wave_us"][i].get<double>()));
  console.text(
      fmt::format("{} schedules: speed-up off by {:.4f} on average, {:.4f} at worst; time by "
                  "{:.2f} % and {:.2f} %",
                  schedule["n"].get<int>(), schedule["speedup"]["mean"].get<double>(),
                  schedule["speedup"]["worst"].get<double>(),
                  100 * schedule["time_fraction"]["mean"].get<double>(),
                  100 * schedule["time_fraction"]["worst"].get<double>()));
}

}  // namespace xstage::cli
