#include "cli/verbs.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "cli/interrupt.hpp"
#include "cli/typed_options.hpp"
#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

/// --json must hold even when parsing fails, so it is looked for before parsing.
bool wants_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--json") == 0) return true;
  return false;
}

std::string verb_names(const CLI::App& app) {
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  return verbs;
}

bool is_verb(const CLI::App& app, const std::string& name) {
  const auto named = [&](const CLI::App* verb) { return verb->check_name(name); };
  return !app.get_subcommands(named).empty();
}

/// What would have been right instead: the options of the verb that was meant, or the verbs.
std::string what_fits(const CLI::App& app) {
  const CLI::App& verb = chosen_verb(app);
  if (&verb == &app) return verb_names(app);
  const bool of_a_layer = verb.get_parent() != &app;  // the layer's options are its own
  return fmt::format("see 'xstage {}{} --help'",
                     of_a_layer ? verb.get_parent()->get_name() + " " : "", verb.get_name());
}

/// An empty text would become the number 0 or the current directory; it is a forgotten variable.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& value : option->results())
      if (value.empty())
        throw Failure(bad_input("this option needs a value", option->get_name(), value, "a value"));
  for (const CLI::App* verb : app.get_subcommands()) refuse_empty_values(*verb);
}

int dispatch(int argc, const char* const* argv) {
  Session session;
  session.console.json = wants_json(argc, argv);
  answer_interrupts(session.console.json);
  CLI::App app{"xstage: measure, predict and schedule the X-Stage of remote stores", "xstage"};
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.fallthrough(false);
  add_bench(app, session);
  add_calibrate(app, session);
  add_doctor(app, session);
  add_fit(app, session);
  add_validate(app, session);
  add_predict(app, session);
  add_plan(app, session);
  add_report(app, session);
  add_run(app, session);
  add_simulate(app, session);
  session.console.named = [&app](Error error) {
    return named_by_option(chosen_verb(app), std::move(error));
  };
  try {
    if (argc > 1 && argv[1][0] != '-' && !is_verb(app, argv[1]))
      throw Failure(bad_input("unknown verb", "verb", argv[1], verb_names(app)));
    app.parse(argc, argv);
    refuse_empty_values(app);
    return session.action();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return session.console.fail(parse_error(chosen_verb(app), error, what_fits(app)));
  } catch (const Failure& failure) {
    return session.console.fail(failure.error());
  } catch (const std::exception& error) {
    return session.console.fail({ErrorKind::kBadInput, error.what(), {}, {}, {}});
  }
}

}  // namespace

int run(int argc, const char* const* argv) {
  int exit_code = static_cast<int>(ErrorKind::kBadInput);
  bool answered = true;
  try {
    exit_code = dispatch(argc, argv);
  } catch (const std::system_error&) {
    answered = false;  // the formatter's word for a failed write
  }
  // A document that was cut off must not look like success.
  if (std::fflush(stdout) == 0 && answered) return exit_code;
  const int reason = errno;
  std::fprintf(stderr, "xstage: cannot write standard output: %s\n", std::strerror(reason));
  return exit_code != 0 ? exit_code : static_cast<int>(ErrorKind::kBadInput);
}

}  // namespace xstage::cli
