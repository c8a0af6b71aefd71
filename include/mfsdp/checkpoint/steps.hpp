// Which steps the ranks and sites of a model have checkpoints of, and how they tell each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/checkpoint/agree.hpp"
#include "mfsdp/checkpoint/folder.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

using step_list = std::vector<std::uint64_t>;  // ascending

// How the ranks of all sites tell each other.
struct site_group {
  int site = 0;
  std::vector<int> first_ranks;  // of each site, in what of_sites gathers
  gather_numbers of_site;
  gather_numbers of_sites;

  [[nodiscard]] int sites() const { return static_cast<int>(first_ranks.size()); }

  // What any rank of any site has met; empty if all are well. Collective calls of all of them.
  [[nodiscard]] std::string faults(const std::string& own, std::string_view label) const {
    const std::string here = join_faults(gather_texts(of_site, own, label));
    if (sites() == 1) return here;
    const auto all = gather_texts(of_sites, here, label);
    std::string text;
    for (int s = 0; s < sites(); ++s) {
      const std::string& there = all[static_cast<std::size_t>(first_ranks[std::size_t(s)])];
      if (!there.empty()) text += fmt::format("{}site {}: {}", text.empty() ? "" : "\n", s, there);
    }
    return text;
  }
  // Errors: the same checkpoint_error on all ranks of all sites.
  void require_no_fault(const std::string& own, std::string_view label) const {
    const std::string text = faults(own, label);
    if (!text.empty()) throw checkpoint_error(text);
  }
};

template <class Model>
[[nodiscard]] site_group group_of(Model& model) {
  site_group group{.site = model.site(),
                   .first_ranks = {},
                   .of_site = gather_of(model),
                   .of_sites = [&model](const step_list& own, std::string_view label) {
                     return model.persistence().gather_from_sites(own, label);
                   }};
  for (int site = 0; site < model.sites(); ++site) {
    group.first_ranks.push_back(model.persistence().first_rank_of_site(site));
  }
  return group;
}

[[nodiscard]] inline std::string text_of(const step_list& steps) {
  return steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", "));
}

// What is wrong if not all ranks of a site see the same; else empty.
[[nodiscard]] inline std::string difference_of_ranks(const std::string& folder,
                                                     const std::vector<step_list>& by_rank) {
  std::map<step_list, std::string> ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    std::string& text = ranks[by_rank[rank]];
    text += fmt::format("{}{}", text.empty() ? "rank " : ", ", rank);
  }
  if (ranks.size() == 1) return {};
  std::string text;
  for (const auto& [steps, who] : ranks) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", who, text_of(steps));
  }
  return fmt::format(
      "the ranks see different steps in '{}': {}; put checkpoints where all ranks of the site see "
      "them",
      folder, text);
}

// Errors: checkpoint_error if there are checkpoints of a run of several sites where one site looks,
// or the other way.
inline void require_no_other_kind(const std::string& root, int sites) {
  if (sites > 1) {
    if (checkpoints_in(root).empty()) return;
    throw checkpoint_error(fmt::format(
        "'{}' has checkpoints of a run of one site, and this one has {}: move them to '{}/site-0', "
        "or name another folder",
        root, sites, root));
  }
  for (const std::string& name : folders_in(root)) {
    const std::string folder = root + "/" + name;
    if (!name.starts_with("site-") || checkpoints_in(folder).empty()) continue;
    throw checkpoint_error(fmt::format(
        "'{}' has checkpoints of a run of several sites, and this one has one: name the folder of "
        "one of them, '{}'",
        root, folder));
  }
}

// The steps that each site has in its folder. Collective calls of all sites. Errors:
// checkpoint_error, the same on all ranks of all sites.
[[nodiscard]] inline std::vector<step_list> steps_of_sites(const std::string& root,
                                                           const site_group& group) {
  constexpr std::string_view label = "look for checkpoints";
  const std::string folder = site_folder(root, group.site, group.sites());
  step_list own;
  group.require_no_fault(fault_of([&] {
                           for (const auto& [step, path] : checkpoints_in(folder)) {
                             own.push_back(static_cast<std::uint64_t>(step));
                           }
                         }),
                         label);
  const std::vector<step_list> by_rank = gather_lists(group.of_site, own, label);
  group.require_no_fault(difference_of_ranks(folder, by_rank), label);
  std::vector<step_list> by_site{own};
  if (group.sites() > 1) {
    const std::vector<step_list> all = gather_lists(group.of_sites, own, label);
    by_site.clear();
    for (const int rank : group.first_ranks) by_site.push_back(all[static_cast<std::size_t>(rank)]);
  }
  if (std::ranges::all_of(by_site, &step_list::empty)) {
    group.require_no_fault(fault_of([&] { require_no_other_kind(root, group.sites()); }), label);
  }
  return by_site;
}

}  // namespace detail

// The step of the latest complete checkpoint in `root`, of any site, if there is one: whether a
// trainer calls load() or initialize(). The same on all ranks and sites, which all call it. Errors:
// checkpoint_error, the same on all of them, if a rank may not look, if the ranks of a site see
// different ones, or if what is there is of a run with sites and this one has none, or the other
// way; usage_error as load. Cost: looks at names; gathers some numbers.
template <class Model>
[[nodiscard]] std::optional<std::int64_t> latest_checkpoint(Model& model, const std::string& root) {
  model.persistence().require_restorable("latest_checkpoint");
  std::optional<std::int64_t> latest;
  for (const auto& list : detail::steps_of_sites(root, detail::group_of(model))) {
    if (!list.empty()) latest = std::max(latest, std::optional(std::int64_t(list.back())));
  }
  return latest;
}

}  // namespace mfsdp::inline MFSDP_ABI
