#include "cli/typed_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "cli/console.hpp"

namespace xstage::cli {
namespace {

const CLI::Option* option_of(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name);
}

/// As it was typed: "" for a flag, the values of a list with blanks between.
std::string value_of(const CLI::Option& option) {
  std::string out;
  if (option.get_items_expected_max() == 0) return "given";
  for (const std::string& value : option.results()) out += (out.empty() ? "" : " ") + value;
  return out;
}

/// "…, or replicate_kv_heads, which …" with the options in place of the library's names, which are
/// told from other words by their underscores.
std::string with_option_names(const CLI::App& verb, const std::string& text) {
  std::string out, word;
  const auto flush = [&] {
    std::string name = "--" + word;
    std::replace(name.begin(), name.end(), '_', '-');
    const bool known = word.find('_') != std::string::npos && option_of(verb, name) != nullptr;
    out += known ? name : word;
    word.clear();
  };
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
    } else {
      flush();
      out += c;
    }
  }
  flush();
  return out;
}

}  // namespace

bool typed(const CLI::App& app, const std::string& option) { return app.count(option) > 0; }

void refuse_idle(const CLI::App& app, const std::string& why,
                 const std::vector<std::string>& options) {
  for (const std::string& name : options)
    if (const CLI::Option* option = option_of(app, name); option && option->count() > 0)
      throw Failure(bad_input(fmt::format("{} has no effect {}", name, why), name,
                              value_of(*option), "leave it out"));
}

void refuse_idle_but(const CLI::App& app, const std::string& why,
                     const std::vector<std::string>& effective) {
  std::vector<std::string> idle;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (name != "--json" && std::find(effective.begin(), effective.end(), name) == effective.end())
      idle.push_back(name);
  }
  refuse_idle(app, why, idle);
}

const CLI::App& chosen_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto inside = at->get_subcommands(); !inside.empty(); inside = at->get_subcommands())
    at = inside.front();
  return *at;
}

Error named_by_option(const CLI::App& verb, Error error) {
  if (error.field.empty() || error.field.starts_with("--")) return error;
  // What the layouts call otherwise than the command line.
  static const std::map<std::string, std::string> other_names = {{"rows", "--seq"},
                                                                 {"key_rows", "--key-seq"},
                                                                 {"activation.clamp", "--clamp"},
                                                                 {"rank 0 tokens", "--capacity"}};
  if (error.field == "file") {
    for (const CLI::Option* option : verb.get_options())
      if (option->count() > 0 && option->results().front() == error.value)
        error.field = option->get_name();
    return error;
  }
  const auto other = other_names.find(error.field);
  std::string name = other != other_names.end() ? other->second : "--" + error.field;
  std::replace(name.begin(), name.end(), '_', '-');
  if (option_of(verb, name) == nullptr) return error;
  error.field = name;
  error.allowed = with_option_names(verb, error.allowed);
  return error;
}

Error parse_error(const CLI::App& verb, const CLI::ParseError& error, std::string allowed) {
  constexpr std::size_t kMostOfMessage = 200;
  Error out{
      ErrorKind::kBadInput, shortened(error.what(), kMostOfMessage), {}, {}, std::move(allowed)};
  const std::string text = error.what();
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const bool of_value = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr ||
                        dynamic_cast<const CLI::ValidationError*>(&error) != nullptr;
  if (!missing && !of_value) return out;
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    const std::size_t at = text.find(name);
    // Not the beginning of a longer name: --lead in --leads.
    if (at == std::string::npos ||
        (at + name.size() < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[at + name.size()])) ||
          text[at + name.size()] == '-')))
      continue;
    if (found == nullptr || at < text.find(found->get_name())) found = option;
  }
  if (found == nullptr) return out;
  out.field = found->get_name();
  out.value = missing ? "not given" : value_of(*found);
  if (missing) {
    out.what = "an option is missing";
  } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    out.what = "the value of an option cannot be read";
    out.allowed = fmt::format("{}; {}", found->get_type_name(), out.allowed);
  } else {
    // "--gpu: Value -1 not in range [0 - 1023]": what is allowed, in the parser's words.
    const std::size_t colon = text.find(": ");
    out.what = "the value of an option is not allowed";
    if (colon != std::string::npos) out.allowed = shortened(text.substr(colon + 2), kMostOfMessage);
  }
  return out;
}

}  // namespace xstage::cli
