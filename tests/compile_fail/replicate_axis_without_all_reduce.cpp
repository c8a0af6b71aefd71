// expect: mfsdp: the replicate axis of the mesh lacks 'request start_all_reduce(full, local,
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_request, with_rank, with_size, with_all_gather> {
#ifndef MFSDP_COMPILE_FAIL
  template <class T>
  archetype::request start_all_reduce(std::span<const T>, std::span<T>, std::span<const piece>,
                                      mfsdp::reduce_into, std::string_view);
#endif
};

void program() {
  train(collective{}, placement{}, optimizer{}, backend{}, broken{});
}
