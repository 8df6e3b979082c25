// What the user typed: options without an effect are refused, and errors name options as typed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "xstage/result.hpp"

namespace xstage::cli {

/// Whether the option stands on the command line. `app` must have it.
bool typed(const CLI::App& app, const std::string& option);

/// Throws a Failure where one of `options` was typed, which would be ignored: "with --schedule
/// wave", "without --stop-rank" says why and names the other option.
void refuse_idle(const CLI::App& app, const std::string& why,
                 const std::vector<std::string>& options);

/// The same for every option that was typed, but for `effective` ones and --json.
void refuse_idle_but(const CLI::App& app, const std::string& why,
                     const std::vector<std::string>& effective);

/// The verb that was chosen with its layer ("run moe"); `app` itself where none was.
const CLI::App& chosen_verb(const CLI::App& app);

/// An error's field by the option that set it: what the library calls `kv_heads` is --kv-heads
/// here, and a file that cannot be written is the option that named it. Fields of files stay.
Error named_by_option(const CLI::App& verb, Error error);

/// What the parser found wrong, with the option and its value where it speaks of one. `allowed`
/// where the parser says nothing better.
Error parse_error(const CLI::App& verb, const CLI::ParseError& error, std::string allowed);

}  // namespace xstage::cli
