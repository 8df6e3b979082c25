// --routing on the command line (first line) and routing files (the rest).
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "shapes/routing.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace xstage::shapes;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = text.find('\n');
  const auto spec = parse_routing(text.substr(0, end));
  const RoutingProblem problem{8, 2, 2, 0, 1};
  if (spec.ok() && spec->kind != RoutingSpec::Kind::kFile) {
    RoutingProblem drawn = problem;
    drawn.tokens = 3;
    const auto routing = make_routing(*spec, drawn);
    if (routing.ok() && routing->ranks.size() != 2) std::abort();
  }
  std::istringstream file(end == std::string::npos ? std::string() : text.substr(end + 1));
  const auto routing = read_routing(file, problem);
  if (!routing.ok()) {
    if (routing.error().message().empty()) std::abort();
    return 0;
  }
  for (const RankRouting& rank : routing->ranks)
    for (const std::int32_t expert : rank.experts)
      if (expert < -1 || expert >= problem.experts) std::abort();
  return 0;
}
