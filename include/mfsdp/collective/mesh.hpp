// mesh: the axes of a job, each a collective; the ones that are not given have one rank.
#pragma once

#include "mfsdp/collective/self.hpp"

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

}  // namespace mfsdp::inline MFSDP_ABI
