// Which checkpoint a model loads: the latest that all of its ranks and sites have, or one of a
// given step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mfsdp/checkpoint/folder.hpp"
#include "mfsdp/checkpoint/steps.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

struct chosen_checkpoint {
  std::int64_t step = 0;
  std::string folder{};  // where it is
  std::string path{};
  bool joins = false;                      // it is of another site, since this one has none
  std::optional<std::uint64_t> earlier{};  // the step before, that all have, too
  step_list newer{};                       // what this site has beside
  bool any_newer = false;                  // whether any site has

  // Errors: checkpoint_error if this rank does not see it.
  void require_seen() const {
    if (checkpoints_in(folder).contains(step)) return;
    throw checkpoint_error(fmt::format(
        "there is no '{}', which another rank sees: a site that joins needs to see the folder of "
        "the site that it takes from",
        path));
  }
  // What a person can do if it is damaged.
  [[nodiscard]] std::string way_on() const {
    if (!earlier) return "there is no earlier one: put a copy in its place, or begin anew";
    return fmt::format(
        "move '{}' away to go on from step {}, or name that one on purpose (load_options.step)",
        path, *earlier);
  }
};

[[nodiscard]] inline step_list newer_than(const step_list& steps, std::uint64_t step) {
  return {std::ranges::upper_bound(steps, step), steps.end()};
}

// Out of what each site has. If `any_site`, that of the lowest site that has one, for all of them;
// then nothing is put aside. Errors: checkpoint_error, the same on all sites.
[[nodiscard]] inline chosen_checkpoint choose_checkpoint(const std::string& root,
                                                         const std::vector<step_list>& by_site,
                                                         int site, bool any_site,
                                                         std::optional<std::int64_t> asked) {
  const int sites = static_cast<int>(by_site.size());
  const auto has_any = [](const step_list& list) { return !list.empty(); };
  const auto giver = std::ranges::find_if(by_site, has_any);
  if (giver == by_site.end()) {
    throw checkpoint_error(fmt::format(
        "'{}' has no checkpoint: name the right folder, or initialize if this run is new", root));
  }
  std::string lists;
  step_list common = *giver;  // what all have that have any
  for (int s = 0; s < sites; ++s) {
    const step_list& list = by_site[static_cast<std::size_t>(s)];
    if (list.empty()) continue;
    lists += fmt::format("{}{}{}", lists.empty() ? "" : "; ",
                         sites == 1 ? "steps " : fmt::format("site {}: ", s), text_of(list));
    if (any_site) break;
    std::erase_if(common, [&](auto step) { return !std::ranges::binary_search(list, step); });
  }
  if (asked) {
    const auto step = static_cast<std::uint64_t>(*asked);
    if (!std::ranges::binary_search(common, step)) {
      throw checkpoint_error(fmt::format(
          "'{}' has no checkpoint of step {}{}; there are {}: name another step{}", root, *asked,
          sites == 1 ? "" : " of every site that has any", lists,
          sites == 1 ? "" : ", or move the folder of a site without it away, so that it joins"));
    }
    std::erase_if(common, [&](auto other) { return other > step; });
  }
  const std::uint64_t last = common.empty() ? 0 : common.back();
  const bool far = !any_site && !asked && std::ranges::any_of(by_site, [&](const auto& list) {
    return newer_than(list, last).size() > 1;
  });
  if (common.empty() || far) {
    throw checkpoint_error(fmt::format(
        "the sites of '{}' have saved different steps, {}; to go on from the last that all have "
        "would put aside more than one checkpoint of a site. {}move the folder of the site that is "
        "behind away, so that it joins",
        root, lists,
        common.empty()
            ? "They have none in common: "
            : fmt::format("Either load it on purpose (load_options.step = {}), or ", last)));
  }
  const step_list& own = by_site[static_cast<std::size_t>(site)];
  chosen_checkpoint chosen{.step = static_cast<std::int64_t>(last),
                           .joins = !any_site && own.empty()};
  if (common.size() > 1) chosen.earlier = common[common.size() - 2];
  const bool elsewhere = any_site || chosen.joins;
  const int from = elsewhere ? static_cast<int>(giver - by_site.begin()) : site;
  chosen.folder = site_folder(root, from, sites);
  chosen.path = fmt::format("{}/{}", chosen.folder, step_name(chosen.step));
  if (any_site) return chosen;
  chosen.newer = newer_than(own, last);
  chosen.any_newer = std::ranges::any_of(
      by_site, [&](const auto& list) { return !newer_than(list, last).empty(); });
  return chosen;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
