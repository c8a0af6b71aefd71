// Which checkpoint a model loads: the latest that all of its ranks and sites have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/checkpoint/agree.hpp"
#include "mfsdp/checkpoint/folder.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

struct chosen_checkpoint {
  std::int64_t step = 0;
  std::string path{};
  bool joins = false;  // it is of another site, since this one has none
  // What keeps this rank from it. All go on as if there were none until all sites can be told.
  std::string fault{};
};

// Steps that are in all lists, ascending.
[[nodiscard]] inline std::vector<std::uint64_t> in_all(
    const std::vector<std::vector<std::uint64_t>>& lists) {
  std::vector<std::uint64_t> common = lists.front();
  for (const auto& list : lists) {
    std::erase_if(common,
                  [&](std::uint64_t step) { return std::ranges::find(list, step) == list.end(); });
  }
  return common;
}

// The path of a checkpoint of a site. Errors: checkpoint_error if it is not there.
[[nodiscard]] inline std::string path_of(const std::string& root, int site, int sites,
                                         std::int64_t step) {
  const auto found = checkpoints_of_site(root, site, sites);
  const auto at = found.find(step);
  if (at != found.end()) return at->second;
  throw checkpoint_error(fmt::format(
      "there is no '{}/{}', which another rank sees: all ranks need one file system, and a site "
      "that joins the folder of the site that it takes from",
      site_folder(root, site, sites), step_name(step)));
}

// `first_ranks`: of each site, its first rank in what `of_sites` gathers. If `any_site`, that of
// the lowest site that has one, for all of them. Collective calls. Errors: checkpoint_error, the
// same on all ranks of a site, and on all sites alike, if there is none.
[[nodiscard]] inline chosen_checkpoint choose_checkpoint(const std::string& root, int site,
                                                         const std::vector<int>& first_ranks,
                                                         bool any_site,
                                                         const gather_numbers& of_site,
                                                         const gather_numbers& of_sites) {
  const int sites = static_cast<int>(first_ranks.size());
  chosen_checkpoint chosen;
  std::vector<std::uint64_t> own;
  const std::string unread = fault_of([&] {
    for (const auto& [step, path] : checkpoints_of_site(root, site, sites)) {
      own.push_back(static_cast<std::uint64_t>(step));
    }
  });
  chosen.fault = join_faults(gather_texts(of_site, unread, "checkpoints of ranks"));
  const auto by_rank = gather_lists(of_site, own, "checkpoints of ranks");
  const std::vector<std::uint64_t> of_own = in_all(by_rank);
  const bool any = std::ranges::any_of(by_rank, [](const auto& list) { return !list.empty(); });
  if (chosen.fault.empty() && any && of_own.empty()) {
    chosen.fault = fmt::format(
        "'{}' has no checkpoint that all ranks of site {} see: they need one file system", root,
        site);
  }
  std::vector<std::vector<std::uint64_t>> by_site{of_own};
  if (sites > 1) {
    const auto all = gather_lists(of_sites, of_own, "checkpoints of sites");
    by_site.clear();
    for (const int rank : first_ranks) by_site.push_back(all[static_cast<std::size_t>(rank)]);
  }
  std::vector<std::vector<std::uint64_t>> of_some;
  std::optional<int> giver;
  for (int s = 0; s < sites; ++s) {
    const auto& list = by_site[static_cast<std::size_t>(s)];
    if (list.empty()) continue;
    if (!giver) giver = s;
    of_some.push_back(list);
  }
  if (!giver) {
    throw checkpoint_error(
        !chosen.fault.empty()
            ? chosen.fault
            : fmt::format("'{}' has no checkpoint; initialize the model instead", root));
  }
  if (any_site) of_some.resize(1);
  const std::vector<std::uint64_t> common = in_all(of_some);
  if (common.empty()) {
    throw checkpoint_error(fmt::format(
        "the sites that have checkpoints in '{}' have none of the same step: they cannot go on "
        "together; keep those of one site and move the others away",
        root));
  }
  chosen.step = static_cast<std::int64_t>(*std::ranges::max_element(common));
  chosen.joins = !any_site && by_site[static_cast<std::size_t>(site)].empty();
  const int from = any_site || chosen.joins ? *giver : site;
  chosen.path = fmt::format("{}/{}", site_folder(root, from, sites), step_name(chosen.step));
  if (chosen.fault.empty()) {
    chosen.fault = fault_of([&] { chosen.path = path_of(root, from, sites, chosen.step); });
  }
  return chosen;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
