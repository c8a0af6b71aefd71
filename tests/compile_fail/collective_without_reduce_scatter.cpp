// expect: mfsdp: Collective lacks 'request start_reduce_scatter(full, shard, pieces, into, label)'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_request, with_rank, with_size, with_all_gather, with_all_reduce> {
#ifndef MFSDP_COMPILE_FAIL
  template <class T>
  archetype::request start_reduce_scatter(std::span<const T>, std::span<T>, std::span<const piece>,
                                          mfsdp::reduce_into, std::string_view);
#endif
};

void program() {
  train(broken{}, mfsdp::owner_placement{}, optimizer{});
}
