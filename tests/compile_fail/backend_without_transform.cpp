// expect: mfsdp: Backend lacks 'transform(kernel, spans...)'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_allocate, with_fill, with_copy, with_multiply,
                         with_multiply_symmetric, with_sum_of_squares> {
#ifndef MFSDP_COMPILE_FAIL
  template <class Kernel, class... T>
  void transform(const Kernel&, std::span<T>...);
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, optimizer{}, broken{});
}
