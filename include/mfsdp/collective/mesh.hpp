// mesh: the axes of a job, each a collective; the ones that are not given have one rank.
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "mfsdp/collective/self.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

template <Collective Shard, Collective Replicate = self, Collective Site = self>
struct mesh {
  Shard shard;
  Replicate replicate{};
  Site site{};
};

template <Collective Shard>
mesh(Shard) -> mesh<Shard>;
template <Collective Shard, Collective Replicate>
mesh(Shard, Replicate) -> mesh<Shard, Replicate>;
template <Collective Shard, Collective Replicate, Collective Site>
mesh(Shard, Replicate, Site) -> mesh<Shard, Replicate, Site>;

// A collective that can be cut into groups: the ranks of one color, in the order of ranks.
template <class C>
concept Splits = Collective<C> && requires(C c) {
  { c.split(0) } -> std::same_as<C>;
};

// Cuts a world into shard groups of neighbouring ranks, and joins the ranks that hold equal shards
// in them: rank r becomes rank r % shard_ranks of shard group r / shard_ranks. A collective call,
// of two splits. Errors: spec_error if the world cannot be cut evenly.
template <Splits World>
[[nodiscard]] auto make_mesh(World world, int shard_ranks) {
  if (shard_ranks < 1 || world.size() % shard_ranks != 0) {
    throw spec_error(
        fmt::format("{} ranks cannot be cut into shard groups of {}", world.size(), shard_ranks));
  }
  return mesh{.shard = world.split(world.rank() / shard_ranks),
              .replicate = world.split(world.rank() % shard_ranks)};
}

// Cuts a world into sites of neighbouring ranks, each a shard group, that meet on the site axis;
// site s has ranks[s] of them, `make_sites(world, {2, 3})`. A collective call, of two splits.
// Errors: spec_error unless they make up the world, or if this rank and another were given other
// lists.
template <Splits World>
[[nodiscard]] auto make_sites(World world, const std::vector<int>& ranks) {
  int site = 0;
  int end = 0;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    if (ranks[s] < 1) throw spec_error(fmt::format("site {} has {} ranks", s, ranks[s]));
    if (world.rank() >= end) site = static_cast<int>(s);
    end += ranks[s];
  }
  if (end != world.size()) {
    throw spec_error(
        fmt::format("the sites have {} ranks together, the world has {}", end, world.size()));
  }
  // Ranks with one list form one group: all of them.
  std::uint32_t list = 17;
  for (const int r : ranks) list = 31 * list + static_cast<std::uint32_t>(r);
  const int alike = world.split(static_cast<int>(list & 0x7fffffff)).size();
  if (alike != world.size()) {
    throw spec_error(fmt::format(
        "rank {} was given the sites {}, as {} of {} ranks were; all ranks must be given the same",
        world.rank(), fmt::join(ranks, ", "), alike, world.size()));
  }
  return mesh{.shard = world.split(site), .replicate = self{}, .site = world};
}

}  // namespace mfsdp::inline MFSDP_ABI
