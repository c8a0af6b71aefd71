// expect: mfsdp: Collective lacks 'request start_all_gather(shard, full, pieces, label)'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_request, with_rank, with_size, with_reduce_scatter, with_all_reduce> {
#ifdef MFSDP_COMPILE_FAIL
  using T = float;
#else
  template <class T>
#endif
  archetype::request start_all_gather(std::span<const T>, std::span<T>, std::span<const piece>,
                                      std::string_view);
};

void program() {
  train(broken{}, mfsdp::owner_placement{}, optimizer{});
}
