// What `xstage run moe` and `xstage run ulysses` share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.hpp"
#include "cpu/group.hpp"
#include "xstage/result.hpp"
#include "xstage/sync/wait.hpp"

namespace xstage::cli {

struct RunOptions {
  std::string backend = "cpu";
  int workers = 4;
  int ranks_per_gpu = 1;  ///< cuda: the ranks that share a GPU, each with its part of the SMs
  int runs = 2;
  std::int64_t wait_limit_ms = 60000;
  std::int64_t first_wait_limit_ms = 300000;
  double max_work = 2e13;  ///< multiply-adds: an hour and a half of two cores
  bool no_check = false;
  std::string out;
};

void add_run_options(CLI::App& app, RunOptions& options);

/// Refuses what was typed and would be ignored. Throws Failure.
void refuse_idle_run_options(const CLI::App& app, const RunOptions& options);

/// Checks the ranges; with `--backend cuda` the reason why the layer cannot run there.
/// `has_kernel`: there is one for this kind of layer.
std::optional<Error> check(const RunOptions& options, int ranks, bool has_kernel = false);

/// For a document with ranks on GPUs: how many share one, at its top and in its provenance, so that
/// nobody takes its times for those of a GPU each.
void tell_sharing(const Console& console, const RunOptions& options, int ranks,
                  nlohmann::json& document);

/// Ranges of --check-every and of --stop-rank (-1: none).
std::optional<Error> check_rows(std::int64_t check_every, int stop_rank, int ranks);

/// Refuses what a CPU would compute for hours, before anything is drawn or allocated; says on
/// stderr how long the rest will take, where that is long.
std::optional<Error> check_work(const Console& console, const RunOptions& options,
                                double multiply_adds);

void set_limits(cpu::LaunchOptions& launch, const RunOptions& options);

/// Bytes that may be allocated now, as the system sees it.
std::int64_t available_memory();

/// A digest of bits, as 16 hexadecimal digits.
std::string digest_of(const std::vector<std::vector<std::uint16_t>>& outputs);

/// Who waited for what, as the run's document lists it.
nlohmann::json to_json(const std::vector<sync::WaitRecord>& waits);

/// Ends a run: the document to stdout or --out, the exit code by whether all was right.
int finish(const Session& session, const RunOptions& options, nlohmann::json document, bool ok,
           const std::string& what_failed);

void add_run_moe(CLI::App& run, Session& session);
void add_run_ulysses(CLI::App& run, Session& session);

}  // namespace xstage::cli
