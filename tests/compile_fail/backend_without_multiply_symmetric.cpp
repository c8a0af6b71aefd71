// expect: mfsdp: Backend lacks 'multiply_symmetric(alpha, a, op_a, b, op_b, beta, c, d)'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_allocate, with_fill, with_copy, with_multiply, with_transform,
                         with_sum_of_squares> {
#ifndef MFSDP_COMPILE_FAIL
  void multiply_symmetric(float, matrix_view<const float>, mfsdp::transpose,
                          matrix_view<const float>, mfsdp::transpose, float,
                          matrix_view<const float>, matrix_view<float>);
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, optimizer{}, broken{});
}
