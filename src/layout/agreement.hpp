// Finds the first field in which the configurations of the ranks differ.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xstage/result.hpp"

namespace xstage::layout {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// `fields(config)` lists every field by name, as text.
template <class Config, class Fields>
Result<Config> agreed_by_fields(const std::vector<Config>& of_rank, Fields&& fields) {
  if (of_rank.empty())
    return bad_input("no rank has a configuration", "ranks", "0", "at least one");
  const NamedValues first = fields(of_rank[0]);
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::string values = "rank 0: " + first[i].second;
    bool differ = false;
    for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
      const std::string value = fields(of_rank[rank])[i].second;
      if (value == first[i].second) continue;
      differ = true;
      values += fmt::format(", rank {}: {}", rank, value);
    }
    if (differ)
      return bad_input("the ranks were set up differently", first[i].first, values,
                       "the same value on every rank");
  }
  return of_rank[0];
}

}  // namespace xstage::layout
