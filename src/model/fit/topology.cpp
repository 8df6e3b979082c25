// Who shares the link, and which SMs a grid takes.
#include "model/fit/parts.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <set>
#include <tuple>

namespace xstage::model {
namespace {

/// Blocks fill SMs in an order that small grids show: an SM that the grid of 33 uses comes before
/// one that only the grid of 66 uses. Blocks with the lowest indices sit on the SMs that every
/// grid takes first; after them the first SM of every pair comes before the second.
std::vector<int> fill_order(const std::vector<SmBursts>& bursts, int sms) {
  std::map<int, std::map<int, int>> grids;  // producers -> block -> SM
  for (const SmBursts& b : bursts)
    if (b.sm < sms) grids[b.producers].emplace(b.block, b.sm);
  // The common prefix of all grids.
  std::vector<int> rank(static_cast<std::size_t>(sms), 1 << 20);
  int prefix = 0;
  if (!grids.empty()) {
    const auto& smallest = grids.begin()->second;
    for (const auto& [block, sm] : smallest) {
      const bool common =
          block == prefix && std::all_of(grids.begin(), grids.end(), [&](const auto& grid) {
            const auto found = grid.second.find(block);
            return found != grid.second.end() && found->second == sm;
          });
      // A grid of one kind only shows no prefix: its blocks are numbered, not filled, in order.
      if (!common || grids.size() < 2) break;
      rank[static_cast<std::size_t>(sm)] = prefix++;
    }
  }
  std::vector<std::tuple<int, int, int, int>> keys;
  for (int sm = 0; sm < sms; ++sm) {
    int first_grid = 1 << 20;
    for (const auto& [producers, blocks] : grids)
      for (const auto& [block, used] : blocks)
        if (used == sm) first_grid = std::min(first_grid, producers);
    keys.emplace_back(rank[static_cast<std::size_t>(sm)], first_grid, sm % 2, sm);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> order;
  for (const auto& key : keys) order.push_back(std::get<3>(key));
  return order;
}

}  // namespace

void fit_topology(const SampleSet& set, Profile& profile) {
  int sms = 0;
  for (const Sample& s : set.samples) sms = std::max(sms, s.producers);
  for (const SmBursts& b : set.sm_bursts) sms = std::max({sms, b.producers, b.sm + 1});
  for (const SmGroups& g : set.sm_groups)
    for (const auto& group : g.groups)
      for (int sm : group) sms = std::max(sms, sm + 1);
  profile.node.sms = sms;
  if (set.sm_groups.empty()) {
    profile.notes.push_back(
        "groups of SMs are not among these samples: every SM is taken to share the link alike");
    return;
  }
  if (set.sm_bursts.empty())
    profile.notes.push_back(
        "no per-SM samples: blocks are taken to fill the first SM of every pair first");
  std::set<int> gpus;
  for (const SmGroups& g : set.sm_groups) {
    int members = 0;
    for (const auto& group : g.groups) members += static_cast<int>(group.size());
    if (members != sms)
      throw Failure(bad_input("the groups of SMs do not cover the GPU", "sm_groups",
                              fmt::format("{} SMs on GPU {}", members, g.gpu),
                              fmt::format("{}", sms)));
    if (gpus.insert(g.gpu).second)
      profile.topology.push_back({g.gpu, g.groups, fill_order(set.sm_bursts, sms)});
  }
}

void fit_node(const SampleSet& set, Profile& profile) {
  for (const std::string& comment : set.comments) {
    if (profile.node.description.empty()) {
      const std::size_t end = comment.find(';');
      profile.node.description = comment.substr(0, std::min(end, std::size_t{120}));
    }
    double ghz = 0;
    const std::size_t at = comment.find("SM clock measured ");
    if (at != std::string::npos &&
        std::sscanf(comment.c_str() + at, "SM clock measured %lf", &ghz) == 1 && ghz > 0.01 &&
        ghz < 100)
      profile.node.sm_clock_ghz = ghz;
  }
  std::set<int> gpus;
  for (const SmGroups& g : set.sm_groups) gpus.insert(g.gpu);
  profile.node.gpus = static_cast<int>(gpus.size());
}

}  // namespace xstage::model
