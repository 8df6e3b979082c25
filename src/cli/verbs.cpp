#include "cli/verbs.hpp"

#include <fmt/format.h>

#include <cstring>

#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

/// --json must hold even when parsing fails, so it is looked for before parsing.
bool wants_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--json") == 0) return true;
  return false;
}

}  // namespace

int run(int argc, const char* const* argv) {
  Session session;
  session.console.json = wants_json(argc, argv);
  CLI::App app{"xstage: measure, predict and schedule the X-Stage of remote stores", "xstage"};
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.fallthrough(false);
  add_doctor(app, session);
  add_fit(app, session);
  add_validate(app, session);
  add_predict(app, session);
  add_report(app, session);
  try {
    app.parse(argc, argv);
    return session.action();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return session.console.fail({ErrorKind::kBadInput, error.what(), {}, {}, {}});
  } catch (const Failure& failure) {
    return session.console.fail(failure.error());
  } catch (const std::exception& error) {
    return session.console.fail({ErrorKind::kBadInput, error.what(), {}, {}, {}});
  }
}

}  // namespace xstage::cli
