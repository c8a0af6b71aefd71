// The smallest Backend, and for each requirement a type that fails in this one alone.
#include <span>

#include "mfsdp/concepts.hpp"
#include "support/archetypes.hpp"

namespace backend_concept_test {

namespace {

using namespace archetype;
using mfsdp::Backend, mfsdp::transpose;

static_assert(
    Backend<composed<with_allocate, with_fill, with_copy, with_multiply, with_multiply_symmetric,
                     with_transform, with_transform_by_sum, with_sum_of_squares>>);

static_assert(!Backend<composed<with_fill, with_copy, with_multiply, with_multiply_symmetric,
                                with_transform, with_transform_by_sum, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_copy, with_multiply, with_multiply_symmetric,
                                with_transform, with_transform_by_sum, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_fill, with_multiply, with_multiply_symmetric,
                                with_transform, with_transform_by_sum, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_fill, with_copy, with_multiply_symmetric,
                                with_transform, with_transform_by_sum, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_fill, with_copy, with_multiply, with_transform,
                                with_transform_by_sum, with_sum_of_squares>>);
static_assert(
    !Backend<composed<with_allocate, with_fill, with_copy, with_multiply, with_multiply_symmetric,
                      with_transform_by_sum, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_fill, with_copy, with_multiply,
                                with_multiply_symmetric, with_transform, with_sum_of_squares>>);
static_assert(!Backend<composed<with_allocate, with_fill, with_copy, with_multiply,
                                with_multiply_symmetric, with_transform, with_transform_by_sum>>);

template <class T>
struct constant_memory {
  std::span<const T> span();
};
struct constant_allocate {
  template <class T>
  constant_memory<T> allocate(index_t);
};
struct constant_fill {
  void fill(std::span<const double>, float);
};
struct backward_copy {
  void copy(std::span<float>, std::span<const float>);
};
struct plain_multiply {
  void multiply(float, matrix_view<const float>, matrix_view<const float>, float,
                matrix_view<const float>, matrix_view<float>);
};
struct mutable_multiply {
  void multiply(float, matrix_view<float>, transpose, matrix_view<float>, transpose, float,
                matrix_view<float>, matrix_view<float>);
};
struct mutable_transform {
  template <class K>
  void transform(const K&, std::span<float>, std::span<float>);
};
struct sumless_transform_by_sum {
  template <class K>
  void transform_by_sum(const K&, std::span<float>, std::span<const float>);
};
struct float_sum {
  float sum_of_squares(std::span<const float>);
};
struct not_copyable {
  not_copyable() = default;
  not_copyable(const not_copyable&) = delete;
};

template <class Allocate = with_allocate, class Fill = with_fill, class Copy = with_copy,
          class Multiply = with_multiply, class Transform = with_transform,
          class TransformBySum = with_transform_by_sum, class Sum = with_sum_of_squares>
using backend = composed<Allocate, Fill, Copy, Multiply, with_multiply_symmetric, Transform,
                         TransformBySum, Sum>;

static_assert(Backend<backend<>>);
static_assert(!Backend<backend<constant_allocate>>);
static_assert(!Backend<backend<with_allocate, constant_fill>>);
static_assert(!Backend<backend<with_allocate, with_fill, backward_copy>>);
static_assert(!Backend<backend<with_allocate, with_fill, with_copy, plain_multiply>>);
static_assert(!Backend<backend<with_allocate, with_fill, with_copy, mutable_multiply>>);
static_assert(
    !Backend<backend<with_allocate, with_fill, with_copy, with_multiply, mutable_transform>>);
static_assert(!Backend<backend<with_allocate, with_fill, with_copy, with_multiply, with_transform,
                               sumless_transform_by_sum>>);
static_assert(!Backend<backend<with_allocate, with_fill, with_copy, with_multiply, with_transform,
                               with_transform_by_sum, float_sum>>);
static_assert(!Backend<composed<backend<>, not_copyable>>);

}  // namespace

}  // namespace backend_concept_test
