// Which token goes to which experts: the routings of the command line, and a reader for files.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "xstage/result.hpp"

namespace xstage::shapes {

/// `balanced`, `zipf:S`, `remote:F` or `file:PATH`.
struct RoutingSpec {
  enum class Kind { kBalanced, kZipf, kRemote, kFile };
  Kind kind = Kind::kBalanced;
  double parameter = 0;  ///< S, or F
  std::string path;
  std::string text() const;
};

Result<RoutingSpec> parse_routing(std::string_view text);

/// What routing needs to know of a layer. Rank e / (experts / ranks) owns expert e.
struct RoutingProblem {
  std::int64_t experts = 0;
  std::int64_t topk = 0;
  int ranks = 1;
  std::int64_t tokens = 0;  ///< a rank; for a file, 0 takes what the file has
  std::uint64_t seed = 0;
};

/// One expert per (token, slot); -1 is a slot that goes nowhere.
struct RankRouting {
  std::int64_t tokens = 0;
  std::vector<std::int32_t> experts;  ///< [tokens][k]
  std::vector<float> weights;         ///< [tokens][k]
};

struct Routing {
  std::int64_t topk = 0;
  std::int64_t experts = 0;
  std::vector<RankRouting> ranks;

  /// Rows that each expert receives from the tokens of `rank` ([experts]), or of all ranks.
  std::vector<std::int64_t> rows_of(int rank) const;
  std::vector<std::int64_t> rows() const;
  /// Share of the (token, slot) pairs in use whose expert lives on another rank.
  double remote_share() const;
};

/// Draws (or reads) the routing. The same problem and seed give the same routing everywhere.
Result<Routing> make_routing(const RoutingSpec& spec, const RoutingProblem& problem);

/// Reads a routing file: one token a line, k expert ids, then k weights, between blanks or commas;
/// empty lines and lines that begin with # do not count. The lines are the tokens of rank 0, then
/// of rank 1 and so on, equally many each. Errors name line and column.
Result<Routing> read_routing(std::istream& in, const RoutingProblem& problem);

}  // namespace xstage::shapes
