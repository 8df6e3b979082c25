#include "shapes/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "shapes/random.hpp"
#include "shapes/shapes.hpp"
#include "xstage/input_file.hpp"
#include "xstage/limits.hpp"

namespace xstage::shapes {
namespace {

constexpr double kMaxZipf = 16;  // 2^20 experts: 1/rank^16 stays far above the smallest double
constexpr std::uint64_t kPermutationStream = 1u << 20;

/// `count` different values of [0, range), in random order (Floyd's method, then a shuffle).
void draw_different(Random& random, std::int64_t range, std::int64_t count, std::int32_t base,
                    std::vector<std::int32_t>& out) {
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  for (std::int64_t j = range - count; j < range; ++j) {
    const auto pick = static_cast<std::int32_t>(base + random.below(j + 1));
    const bool taken = std::find(out.begin() + first, out.end(), pick) != out.end();
    out.push_back(taken ? static_cast<std::int32_t>(base + j) : pick);
  }
  for (std::int64_t i = count - 1; i > 0; --i)
    std::swap(out[static_cast<std::size_t>(first + i)],
              out[static_cast<std::size_t>(first + random.below(i + 1))]);
}

/// Experts with probability ∝ 1/rank^S, drawn without replacement.
class Zipf {
 public:
  Zipf(std::int64_t experts, double exponent, std::uint64_t seed) : order_(experts) {
    std::iota(order_.begin(), order_.end(), 0);
    Random random(seed, kPermutationStream);
    for (std::int64_t i = experts - 1; i > 0; --i)
      std::swap(order_[static_cast<std::size_t>(i)],
                order_[static_cast<std::size_t>(random.below(i + 1))]);
    double sum = 0;
    for (std::int64_t rank = 1; rank <= experts; ++rank)
      cumulative_.push_back(sum += std::pow(static_cast<double>(rank), -exponent));
  }

  void draw(Random& random, std::int64_t count, std::vector<std::int32_t>& out) {
    picked_.clear();
    int rejected = 0;
    while (static_cast<std::int64_t>(picked_.size()) < count) {
      // Rejecting what is already there is the same as drawing from the renormalised rest.
      const std::size_t pick = rejected < 64 ? from_all(random) : from_rest(random);
      if (std::find(picked_.begin(), picked_.end(), pick) != picked_.end())
        ++rejected;
      else
        picked_.push_back(pick);
    }
    for (const std::size_t pick : picked_) out.push_back(order_[pick]);
  }

 private:
  std::size_t from_all(Random& random) {
    const double at = random.uniform() * cumulative_.back();
    const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
    return static_cast<std::size_t>(std::min(found, cumulative_.end() - 1) - cumulative_.begin());
  }

  double mass(std::size_t i) const { return cumulative_[i] - (i ? cumulative_[i - 1] : 0.0); }

  /// Exact draw from what is not yet picked; for steep distributions, where rejection would be
  /// slow.
  std::size_t from_rest(Random& random) {
    const auto free = [&](std::size_t i) {
      return std::find(picked_.begin(), picked_.end(), i) == picked_.end();
    };
    double rest = 0;
    for (std::size_t i = 0; i < cumulative_.size(); ++i)
      if (free(i)) rest += mass(i);
    double at = random.uniform() * rest;
    std::size_t last = 0;
    for (std::size_t i = 0; i < cumulative_.size(); ++i) {
      if (!free(i)) continue;
      last = i;
      at -= mass(i);
      if (at < 0) break;
    }
    return last;
  }

  std::vector<std::int32_t> order_;
  std::vector<double> cumulative_;
  std::vector<std::size_t> picked_;
};

/// Positive weights that sum to one, as a router's softmax over the chosen experts gives.
void draw_weights(Random& random, std::int64_t topk, std::vector<float>& out) {
  double values[64];
  std::vector<double> many(topk > 64 ? static_cast<std::size_t>(topk) : 0);
  double* raw = topk > 64 ? many.data() : values;
  double sum = 0;
  for (std::int64_t j = 0; j < topk; ++j) sum += raw[j] = std::exp(random.normal());
  for (std::int64_t j = 0; j < topk; ++j) out.push_back(static_cast<float>(raw[j] / sum));
}

/// How many slots of each token leave the rank: exactly round(F·M·k) in all, spread at random, with
/// no token asking for more different experts than there are on either side.
Result<std::vector<std::int64_t>> remote_slots(const RoutingProblem& p, double fraction,
                                               Random& random) {
  const std::int64_t local = p.experts / p.ranks;
  const std::int64_t least = std::max<std::int64_t>(0, p.topk - local);
  const std::int64_t most = std::min(p.topk, p.experts - local);
  const std::int64_t total =
      std::llround(fraction * static_cast<double>(p.tokens) * static_cast<double>(p.topk));
  if (total < least * p.tokens || total > most * p.tokens)
    return bad_input("not that many different experts on this side", "--routing",
                     fmt::format("remote:{}", fraction),
                     fmt::format("remote:{} to remote:{} for {} experts a rank, top-{}, {} ranks",
                                 static_cast<double>(least) / static_cast<double>(p.topk),
                                 static_cast<double>(most) / static_cast<double>(p.topk), local,
                                 p.topk, p.ranks));
  std::vector<std::int64_t> out(static_cast<std::size_t>(p.tokens), least);
  // Selection sampling over the pairs that are free to go either way.
  std::int64_t wanted = total - least * p.tokens;
  std::int64_t left = (most - least) * p.tokens;
  for (auto& slots : out)
    for (std::int64_t j = least; j < most; ++j, --left)
      if (random.uniform() * static_cast<double>(left) < static_cast<double>(wanted)) {
        ++slots;
        --wanted;
      }
  return out;
}

Result<RankRouting> draw_remote(const RoutingProblem& p, double fraction, int rank,
                                Random& random) {
  const auto slots = remote_slots(p, fraction, random);
  if (!slots) return slots.error();
  const std::int64_t local = p.experts / p.ranks;
  const auto begin = static_cast<std::int32_t>(local * rank);
  RankRouting out;
  out.tokens = p.tokens;
  std::vector<std::int32_t> token;
  for (const std::int64_t remote : *slots) {
    token.clear();
    draw_different(random, p.experts - local, remote, 0, token);
    for (auto& expert : token)
      if (expert >= begin) expert += static_cast<std::int32_t>(local);
    draw_different(random, local, p.topk - remote, begin, token);
    for (std::size_t i = token.size() - 1; i > 0; --i)
      std::swap(token[i],
                token[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
    out.experts.insert(out.experts.end(), token.begin(), token.end());
    draw_weights(random, p.topk, out.weights);
  }
  return out;
}

Result<RoutingProblem> checked(const RoutingProblem& p) {
  if (p.ranks < 1 || p.ranks > kMaxRanks)
    return bad_input("number of ranks not allowed", "--ranks", std::to_string(p.ranks),
                     fmt::format("1 to {}", kMaxRanks));
  if (p.experts < 1 || p.experts > kMaxSize)
    return bad_input("number of experts not allowed", "--experts", std::to_string(p.experts),
                     fmt::format("1 to {}", kMaxSize));
  if (p.experts % p.ranks != 0)
    return bad_input("the experts do not divide by the ranks", "--experts",
                     std::to_string(p.experts), fmt::format("a multiple of {}", p.ranks));
  if (p.topk < 1 || p.topk > p.experts)
    return bad_input("top-k not allowed", "--topk", std::to_string(p.topk),
                     fmt::format("1 to {}", p.experts));
  if (p.tokens < 0 || p.tokens > kMaxTokens)
    return bad_input("number of tokens not allowed", "--tokens", std::to_string(p.tokens),
                     fmt::format("0 to {}", kMaxTokens));
  return p;
}

/// Cuts a line into fields at blanks, commas and carriage returns.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> out;
  constexpr std::string_view kGaps = " \t,\r";
  for (std::size_t at = line.find_first_not_of(kGaps); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kGaps, at), line.size());
    out.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kGaps, end);
  }
  return out;
}

/// Gates are softmax values; the largest factor that a model multiplies them by is far below this.
/// Beyond it the products pass the range of bf16 and no relative error means anything.
constexpr float kMaxWeight = 1e6f;

/// Reads lines of limited length, of a file of limited size: a device has no end.
class LineReader {
 public:
  LineReader(std::istream& in, std::size_t longest) : buffer_(*in.rdbuf()), longest_(longest) {}

  static constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

  /// False at the end of the file, or of what may be read: see error().
  bool next(std::string& line) {
    line.clear();
    ++number_;
    using Traits = std::istream::traits_type;
    for (auto c = buffer_.sbumpc(); c != Traits::eof(); c = buffer_.sbumpc()) {
      if (++bytes_ > kMaxBytes)
        return fail("the routing file is too large", fmt::format("more than {} bytes", kMaxBytes),
                    fmt::format("at most {} bytes", kMaxBytes));
      if (c == '\n') return true;
      if (line.size() == longest_)
        return fail("a line of the routing file is too long",
                    fmt::format("more than {} characters", longest_),
                    fmt::format("at most {} characters", longest_));
      line.push_back(Traits::to_char_type(c));
    }
    return !line.empty();
  }

  std::int64_t number() const { return number_; }
  const std::optional<Error>& error() const { return error_; }

 private:
  bool fail(const char* what, std::string value, std::string allowed) {
    error_ = bad_input(what, fmt::format("line {}", number_), std::move(value), std::move(allowed));
    return false;
  }

  std::streambuf& buffer_;
  std::size_t longest_;
  std::int64_t number_ = 0, bytes_ = 0;
  std::optional<Error> error_;
};

template <class T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::string RoutingSpec::text() const {
  switch (kind) {
    case Kind::kBalanced: return "balanced";
    case Kind::kZipf: return fmt::format("zipf:{}", parameter);
    case Kind::kRemote: return fmt::format("remote:{}", parameter);
    case Kind::kFile: return "file:" + path;
  }
  return {};
}

Result<RoutingSpec> parse_routing(std::string_view text) {
  constexpr const char* kAllowed = "balanced, zipf:S, remote:F, file:PATH";
  RoutingSpec spec;
  if (text == "balanced") return spec;
  const std::size_t colon = text.find(':');
  const std::string_view head = text.substr(0, colon);
  const std::string_view tail = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (head == "file" && !tail.empty()) {
    spec.kind = RoutingSpec::Kind::kFile;
    spec.path = tail;
    return spec;
  }
  if (head == "zipf" || head == "remote") {
    const bool zipf = head == "zipf";
    const double most = zipf ? kMaxZipf : 1.0;
    spec.kind = zipf ? RoutingSpec::Kind::kZipf : RoutingSpec::Kind::kRemote;
    if (parse_number(tail, spec.parameter) && spec.parameter >= 0 && spec.parameter <= most)
      return spec;
    return bad_input("the parameter of the routing is not allowed", "--routing", std::string(text),
                     fmt::format("{}:0 to {}:{}", head, head, most));
  }
  return bad_input("no such routing", "--routing", std::string(text), kAllowed);
}

std::vector<std::int64_t> Routing::rows_of(int rank) const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(experts), 0);
  for (const std::int32_t expert : ranks.at(static_cast<std::size_t>(rank)).experts)
    if (expert >= 0) ++out[static_cast<std::size_t>(expert)];
  return out;
}

std::vector<std::int64_t> Routing::rows() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(experts), 0);
  for (const RankRouting& rank : ranks)
    for (const std::int32_t expert : rank.experts)
      if (expert >= 0) ++out[static_cast<std::size_t>(expert)];
  return out;
}

double Routing::remote_share() const {
  const std::int64_t local = experts / static_cast<std::int64_t>(ranks.size());
  std::int64_t all = 0, remote = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const std::int32_t expert : ranks[rank].experts) {
      all += expert >= 0;
      remote += expert >= 0 && expert / local != static_cast<std::int64_t>(rank);
    }
  return all ? static_cast<double>(remote) / static_cast<double>(all) : 0.0;
}

Result<Routing> make_routing(const RoutingSpec& spec, const RoutingProblem& problem) {
  const auto valid = checked(problem);
  if (!valid) return valid.error();
  if (spec.kind == RoutingSpec::Kind::kFile) {
    auto in = open_input(spec.path, "--routing");
    if (!in) return in.error();
    return read_routing(*in, problem);
  }
  if (problem.tokens > (std::int64_t{1} << 32) / problem.topk / problem.ranks)
    return bad_input("too many (token, slot) pairs to draw", "--tokens",
                     std::to_string(problem.tokens), "at most 2^32 pairs over all ranks");
  Routing out{problem.topk, problem.experts, {}};
  Zipf zipf(spec.kind == RoutingSpec::Kind::kZipf ? problem.experts : 1, spec.parameter,
            problem.seed);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Random random(problem.seed, static_cast<std::uint64_t>(rank));
    if (spec.kind == RoutingSpec::Kind::kRemote) {
      auto drawn = draw_remote(problem, spec.parameter, rank, random);
      if (!drawn) return drawn.error();
      out.ranks.push_back(std::move(*drawn));
      continue;
    }
    RankRouting drawn;
    drawn.tokens = problem.tokens;
    drawn.experts.reserve(static_cast<std::size_t>(problem.tokens * problem.topk));
    for (std::int64_t token = 0; token < problem.tokens; ++token) {
      if (spec.kind == RoutingSpec::Kind::kZipf)
        zipf.draw(random, problem.topk, drawn.experts);
      else
        draw_different(random, problem.experts, problem.topk, 0, drawn.experts);
      draw_weights(random, problem.topk, drawn.weights);
    }
    out.ranks.push_back(std::move(drawn));
  }
  return out;
}

Result<Routing> read_routing(std::istream& in, const RoutingProblem& problem) {
  const auto valid = checked(problem);
  if (!valid) return valid.error();
  const auto k = static_cast<std::size_t>(problem.topk);
  RankRouting all;
  std::string line;
  // A number needs some 10 characters; the rest is room for blanks and comments.
  LineReader lines(in, 4096 + 64 * 2 * k);
  while (lines.next(line)) {
    const std::int64_t number = lines.number();
    const auto fields = fields_of(line);
    if (fields.empty() || fields[0][0] == '#') continue;
    if (problem.tokens > 0 && all.tokens == problem.tokens * problem.ranks)
      return bad_input(
          "the routing file has the wrong number of tokens", "--routing",
          fmt::format("more than {} lines", all.tokens),
          fmt::format("{} tokens for each of {} ranks", problem.tokens, problem.ranks));
    if (fields.size() != 2 * k)
      return bad_input("wrong number of fields in the routing file", fmt::format("line {}", number),
                       fmt::format("{} fields", fields.size()),
                       fmt::format("{} expert ids, then {} weights", k, k));
    for (std::size_t i = 0; i < 2 * k; ++i) {
      const std::string where = fmt::format("line {}, column {}", number, i + 1);
      const std::string shown(fields[i].substr(0, 64));
      if (i < k) {
        std::int32_t expert = 0;
        if (!parse_number(fields[i], expert) || expert < -1 || expert >= problem.experts)
          return bad_input("an expert id of the routing file is out of range",
                           fmt::format("{} (token {}, slot {})", where, all.tokens, i), shown,
                           fmt::format("-1 to {}", problem.experts - 1));
        all.experts.push_back(expert);
      } else {
        float weight = 0;
        if (!parse_number(fields[i], weight) || !(std::abs(weight) <= kMaxWeight))
          return bad_input("a weight of the routing file is not allowed",
                           fmt::format("{} (token {}, slot {})", where, all.tokens, i - k), shown,
                           fmt::format("numbers from {:g} to {:g}", -kMaxWeight, kMaxWeight));
        all.weights.push_back(weight);
      }
    }
    ++all.tokens;
  }
  if (lines.error()) return *lines.error();
  const std::int64_t ranks = problem.ranks;
  const std::int64_t tokens = problem.tokens > 0 ? problem.tokens : all.tokens / ranks;
  if (all.tokens != tokens * ranks)
    return bad_input("the routing file has the wrong number of tokens", "--routing",
                     fmt::format("{} lines", all.tokens),
                     problem.tokens > 0
                         ? fmt::format("{} tokens for each of {} ranks", tokens, ranks)
                         : fmt::format("a multiple of {} ranks", ranks));
  Routing out{problem.topk, problem.experts, {}};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::ptrdiff_t begin = rank * tokens * problem.topk;
    const std::ptrdiff_t end = begin + tokens * problem.topk;
    out.ranks.push_back({tokens,
                         {all.experts.begin() + begin, all.experts.begin() + end},
                         {all.weights.begin() + begin, all.weights.begin() + end}});
  }
  return out;
}

}  // namespace xstage::shapes
