// expect WITHOUT_MULTIPLY_SYMMETRIC: mfsdp: Backend lacks 'multiply_symmetric(alpha, a, op_a, b,
// expect WITHOUT_TRANSFORM: mfsdp: Backend lacks 'transform(kernel, spans...)'
// expect WITHOUT_TRANSFORM_BY_SUM: mfsdp: Backend lacks 'transform_by_sum(kernel, std::span<const
// T> expect WITHOUT_CONVERSIONS: mfsdp: Backend lacks 'convert(from, to)', 'round_stochastically(
#include "mfsdp/backend/eigen.hpp"
#include "support/archetypes.hpp"

using namespace archetype;

struct memory_backend
    : composed<with_allocate, with_fill, with_copy, with_multiply, with_sum_of_squares> {
#ifndef WITHOUT_MULTIPLY_SYMMETRIC
  void multiply_symmetric(float, matrix_view<const float>, mfsdp::transpose,
                          matrix_view<const float>, mfsdp::transpose, float,
                          matrix_view<const float>, matrix_view<float>);
#endif
#ifndef WITHOUT_TRANSFORM
  template <class Kernel, class... T>
  void transform(const Kernel&, std::span<T>...) {}
#endif
#ifndef WITHOUT_TRANSFORM_BY_SUM
  template <class Kernel, class... T>
  void transform_by_sum(const Kernel&, std::span<const float>, std::span<T>...) {}
#endif
};

#ifdef WITHOUT_CONVERSIONS
using converting_backend = archetype::backend;
#else
using converting_backend = mfsdp::eigen_backend;
#endif

void program(collective comm) {
  train(comm, mfsdp::owner_placement{}, optimizer{}, memory_backend{});
  mfsdp::sharded_model<axes<collective>, mfsdp::owner_placement, optimizer, converting_backend,
                       mfsdp::precision<mfsdp::bfloat16>>
      narrow{{}, axes<collective>{comm}, {}, {}};
}
