#include "cli/provenance.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>

#include "xstage/version.hpp"

namespace xstage::cli {
namespace {

/// Digest of a file's bytes, or null where it cannot be read. A device or a pipe has none: it may
/// have no end, and what is read here is gone.
nlohmann::json digest(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return nullptr;
  std::ifstream in(path, std::ios::binary);
  if (!in) return nullptr;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::array<char, 1 << 16> buffer;
  while (in.read(buffer.data(), buffer.size()) || in.gcount() > 0)
    XXH3_128bits_update(state.get(), buffer.data(), static_cast<std::size_t>(in.gcount()));
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string now_utc() {
  std::time_t now = std::time(nullptr);
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH")) {
    const std::string_view text(epoch);
    long long seconds = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (code == std::errc{} && end == text.data() + text.size() && seconds >= 0)
      now = static_cast<std::time_t>(seconds);
  }
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

nlohmann::json provenance(std::string_view verb, const std::vector<std::filesystem::path>& inputs) {
  nlohmann::json files = nlohmann::json::array();
  for (const std::filesystem::path& path : inputs)
    files.push_back({{"file", path.filename().string()}, {"xxh128", digest(path)}});
  return {{"tool", "xstage"},
          {"version", version()},
          {"verb", verb},
          {"created_utc", now_utc()},
          {"inputs", files}};
}

nlohmann::json reference(const model::Profile& profile) {
  return {{"name", profile.name}, {"node", profile.node.description}};
}

}  // namespace xstage::cli
