// mesh: the axes of a job, each a collective; the ones that are not given have one rank.
#pragma once

#include <concepts>

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

}  // namespace mfsdp::inline MFSDP_ABI
