// The verbs of the command line: one file each, one line each in verbs.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/console.hpp"

namespace xstage::cli {

/// A verb registers its options on `app` and stores what to run when it was chosen. The action
/// returns the exit code; it may throw Failure.
struct Session {
  Console console;
  std::function<int()> action;
};

// One for each verb, in the file of its name.
void add_bench(CLI::App& app, Session& session);
void add_calibrate(CLI::App& app, Session& session);
void add_doctor(CLI::App& app, Session& session);
void add_fit(CLI::App& app, Session& session);
void add_plan(CLI::App& app, Session& session);
void add_predict(CLI::App& app, Session& session);
void add_report(CLI::App& app, Session& session);
void add_run(CLI::App& app, Session& session);
void add_simulate(CLI::App& app, Session& session);
void add_validate(CLI::App& app, Session& session);

/// Runs the command line. `argv` as in main; returns the exit code.
int run(int argc, const char* const* argv);

}  // namespace xstage::cli
