// expect WITHOUT_SIZE: mfsdp: Collective lacks 'int size() const'
// expect GATHERS_FLOAT: mfsdp: Collective lacks 'request start_all_gather(shard, full, pieces,
// expect WITHOUT_REDUCE_SCATTER: mfsdp: Collective lacks 'request start_reduce_scatter(full, shard,
// expect WITHOUT_ALL_REDUCE: mfsdp: Collective lacks 'request start_all_reduce(full, local, pieces,
// expect COPIES_WITHOUT_ALL_REDUCE: mfsdp: the replicate axis of the mesh lacks 'request start_all_
#include <mfsdp/mfsdp.hpp>

#include "support/archetypes.hpp"

using namespace archetype;

struct shards : composed<with_request, with_rank> {
#ifndef WITHOUT_SIZE
  int size() const;
#endif
#ifdef GATHERS_FLOAT
  using T = float;
#else
  template <class T>
#endif
  archetype::request start_all_gather(std::span<const T>, std::span<T>, std::span<const piece>,
                                      std::string_view);
#ifndef WITHOUT_REDUCE_SCATTER
  template <class T>
  archetype::request start_reduce_scatter(std::span<const T>, std::span<T>, std::span<const piece>,
                                          mfsdp::reduce_into, std::string_view);
#endif
#ifndef WITHOUT_ALL_REDUCE
  template <class T>
  archetype::request start_all_reduce(std::span<const T>, std::span<T>, std::span<const piece>,
                                      mfsdp::reduce_into, std::string_view);
#endif
};

struct copies : composed<with_request, with_rank, with_size, with_all_gather> {
#ifndef COPIES_WITHOUT_ALL_REDUCE
  template <class T>
  archetype::request start_all_reduce(std::span<const T>, std::span<T>, std::span<const piece>,
                                      mfsdp::reduce_into, std::string_view);
#endif
};

// On a mesh, and on a collective in its place.
void program(shards comm) {
  train(comm, mfsdp::replicated_placement{}, optimizer{}, backend{}, copies{});
  mfsdp::sharded_model model{mfsdp::model_spec{}, comm, mfsdp::owner_placement{}, optimizer{}};
}
