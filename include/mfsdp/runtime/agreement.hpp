// What ranks find out of each other when a model is built: whether all mean the same, and where the
// sites are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/planner.hpp"
#include "mfsdp/runtime/bits_hash.hpp"
#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/gather.hpp"
#include "mfsdp/runtime/plan_parts.hpp"
#include "mfsdp/runtime/sites.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Where two ranks differ first; the size if nowhere.
[[nodiscard]] inline std::size_t first_difference(std::span<const std::uint64_t> a,
                                                  std::span<const std::uint64_t> b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Errors: plan_error naming the ranks of this site that differ, and the first thing in which they
// do.
template <class Context, class Rules>
void require_equal_plans(Context& context, const Rules& optimizers) {
  const plan& p = context.plan;
  plan_parts parts(Context::precision::to_text(), optimizers);
  parts.add(p);
  // The schedule follows from these options as much as from the plan, and copies stay equal only if
  // they round alike.
  const model_options& options = context.options;
  parts.add_options(fmt::format("prefetch {} reshard {} rounding seed {}", options.prefetch,
                                options.reshard_after_forward, options.rounding_seed));
  const std::vector<std::uint64_t> own = parts.hashes();
  const auto all = gather_from_all<std::uint64_t>(context, own, "plan check", phase::setup);
  std::map<std::vector<std::uint64_t>, std::string> ranks_by_plan;
  std::size_t differs = own.size();
  for (std::size_t r = 0; r < all.size() / own.size(); ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * own.size());
    const std::vector<std::uint64_t> of_rank(first, first + std::ssize(own));
    std::string& list = ranks_by_plan[of_rank];
    list += fmt::format("{}{}", list.empty() ? "" : ", ", r);
    differs = std::min(differs, first_difference(of_rank, {all.data(), own.size()}));
  }
  if (ranks_by_plan.size() == 1) return;
  std::string groups;
  for (const auto& [plan_hash, ranks] : ranks_by_plan) {
    groups += fmt::format("{}rank {}", groups.empty() ? "" : "; ", ranks);
  }
  throw plan_error(fmt::format(
      "the ranks have different plans ({}): they differ in {}; rank {} has {} units and {} "
      "tensors; all ranks must pass the same model, placement, optimizers, precision and options",
      groups, plan_parts::names[differs], context.replicas.rank() * p.ranks + context.rank(),
      p.spec.units().size(), p.spec.tensors().size()));
}

// Do the ranks of the replicate axis hold the same? Errors: spec_error.
template <class Context>
void require_replicas(Context& context) {
  if (context.replicas.size() == 1) return;
  const auto place = static_cast<std::uint64_t>(context.rank());
  for (const std::uint64_t other :
       gather_over<std::uint64_t>(context, context.replicas, {place}, "mesh check", phase::setup)) {
    if (other == place) continue;
    throw spec_error(fmt::format(
        "the replicate axis of the mesh joins rank {} of a shard group with rank {} of another, "
        "which hold different parts of the model; make_mesh joins equal ones",
        place, other));
  }
}

// Where the sites are on their axis. Errors: spec_error if it is no row of whole sites.
template <class Context>
[[nodiscard]] site_map find_sites(Context& context) {
  const plan& p = context.plan;
  if constexpr (Context::elastic) {
    if constexpr (requires { context.sites.round_timeout(); }) {
      if (context.options.timeout <= context.sites.round_timeout()) {
        throw spec_error(fmt::format(
            "model_options.timeout is {} ms, but sites wait up to {} ms for one that does not come "
            "(round_timeout of the elastic_world) and would fail before they drop it; give the "
            "model a longer timeout",
            context.options.timeout.count(), context.sites.round_timeout().count()));
      }
    }
    const int ranks = context.replicas.size() * p.ranks;
    if (ranks > 1) {
      throw spec_error(fmt::format(
          "an elastic site axis has sites of one rank each, but this one has {}: a site of several "
          "ranks cannot lose one of them",
          ranks));
    }
    const auto seats = static_cast<std::size_t>(context.sites.size());
    site_map found{std::vector<int>(seats), std::vector<int>(seats, 1), context.sites.rank()};
    std::iota(found.first.begin(), found.first.end(), 0);
    return found;
  }
  if (context.sites.size() == 1) return {{0}, {p.ranks}, 0};
  struct place {
    std::uint64_t rank, ranks, replica;
  };
  const place own{static_cast<std::uint64_t>(context.rank()), static_cast<std::uint64_t>(p.ranks),
                  static_cast<std::uint64_t>(context.replicas.rank())};
  const auto all = gather_over<std::uint64_t>(
      context, context.sites, {own.rank, own.ranks, own.replica}, "site check", phase::setup);
  const auto place_of = [&](int rank) {
    const std::uint64_t* words = all.data() + 3 * rank;
    return place{words[0], words[1], words[2]};
  };
  site_map found;
  for (int at = 0; at < context.sites.size();) {
    const int ranks = static_cast<int>(place_of(at).ranks);
    for (int r = 0; r < ranks; ++r) {
      if (at + r < context.sites.size()) {
        const place there = place_of(at + r);
        if (there.rank == static_cast<std::uint64_t>(r) && there.ranks == place_of(at).ranks &&
            there.replica == own.replica) {
          continue;
        }
      }
      throw spec_error(fmt::format(
          "rank {} of the site axis should be rank {} of a site of {} ranks; the axis has all "
          "ranks of one site after the other, of equal replicas: see make_sites",
          at + r, r, ranks));
    }
    if (at <= context.sites.rank() && context.sites.rank() < at + ranks) found.own = found.count();
    found.first.push_back(at);
    found.ranks.push_back(ranks);
    at += ranks;
  }
  return found;
}

// What this site shares with which ranks of others. Errors: plan_error if the sites do not train
// the same; spec_error if they cannot share it.
template <class Context, class Where, class Rules>
[[nodiscard]] std::vector<shared_part> shared_with_sites(Context& context, const site_map& sites,
                                                         const Where& placement,
                                                         const Rules& optimizers) {
  if (sites.count() == 1) return {};
  const auto planned = [&](int ranks) {
    return make_plan(context.plan.spec, ranks, placement, optimizers, Context::precision::bytes);
  };
  std::map<int, std::vector<std::vector<segment>>> by_ranks;
  for (const int ranks : sites.ranks) by_ranks.try_emplace(ranks);
  // A placement is what it does for all of these numbers of ranks.
  plan_parts parts(Context::precision::to_text(), optimizers);
  for (auto& [ranks, segments] : by_ranks) {
    plan of_ranks = planned(ranks);
    parts.add(of_ranks);
    segments = std::move(of_ranks.segments);
  }
  const std::vector<std::uint64_t> own = parts.hashes();
  const auto all =
      gather_over<std::uint64_t>(context, context.sites, own, "site plan check", phase::setup);
  for (int s = 0; s < sites.count(); ++s) {
    const auto rank = static_cast<std::size_t>(sites.first[static_cast<std::size_t>(s)]);
    const std::span<const std::uint64_t> there(all.data() + rank * own.size(), own.size());
    const std::size_t differs = first_difference(there, own);
    if (differs == own.size()) continue;
    if (Context::elastic && there[0] == 0) continue;  // nobody is there
    throw plan_error(fmt::format(
        "site {} trains something else than site {}: they differ in {}; all sites must pass the "
        "same model, placement, optimizers and precision",
        s, sites.own, plan_parts::names[differs]));
  }
  std::vector<const std::vector<std::vector<segment>>*> segments;
  for (const int ranks : sites.ranks) segments.push_back(&by_ranks.at(ranks));
  return shared_parts(context.plan, sites, segments);
}

// Do all sites that are there hold the same bits? visit(f) calls f(i, values) for each of
// plan.local_segments that is on this rank. A collective call on the site axis. Errors: plan_error
// naming a tensor that they hold differently.
template <class Context, class Visit>
void require_equal_values(Context& context, const site_map& sites, Visit&& visit) {
  if (sites.count() == 1) return;
  const plan& p = context.plan;
  std::vector<std::uint64_t> own(p.items.size(), 0);
  visit([&](std::size_t i, auto values) {
    const local_segment& s = p.local_segments[i];
    own[s.item] += bits_hash(context.backend, values, s.offset);
  });
  own.push_back(1);  // zero where nobody is
  const auto all =
      gather_over<std::uint64_t>(context, context.sites, own, "initial values", phase::setup);
  const auto sum_of = [&](int site, std::size_t place) {
    const auto s = static_cast<std::size_t>(site);
    std::uint64_t sum = 0;
    for (int r = 0; r < sites.ranks[s]; ++r) {
      sum += all[static_cast<std::size_t>(sites.first[s] + r) * own.size() + place];
    }
    return sum;
  };
  for (int site = 0; site < sites.count(); ++site) {
    if (Context::elastic && sum_of(site, p.items.size()) == 0) continue;
    for (std::size_t item = 0; item < p.items.size(); ++item) {
      if (sum_of(site, item) == sum_of(sites.own, item)) continue;
      throw plan_error(fmt::format(
          "tensor '{}' starts with other values on site {} than on site {}; all sites must call "
          "initialize with the same function",
          p.items[item].name, site, sites.own));
    }
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
