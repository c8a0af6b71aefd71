#include "mfsdp/backend/eigen.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

#include "conformance/backend.hpp"

namespace eigen_test {

using namespace mfsdp;

TEST_CASE("eigen_backend conforms") {
  mfsdp_test::backend_conformance(eigen_backend{});
}

TEST_CASE("eigen_backend converts to and from 16-bit types") {
  mfsdp_test::conversion_conformance(eigen_backend{});
}

TEST_CASE("symmetric products of eigen_backend are symmetric to the last bit") {
  const eigen_backend backend;
  constexpr index_t n = 33;
  host_buffer<float> x(n * 20);
  host_buffer<float> r(n * n);
  for (std::size_t i = 0; i < x.span().size(); ++i) x.span()[i] = std::sin(1.3f * float(i));
  const matrix_view<float> left(x.span().data(), n, 20);
  const matrix_view<float> out(r.span().data(), n, n);
  backend.multiply_symmetric(1.0f, left, transpose::no, left, transpose::yes, 0.0f, out, out);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(r.span()[i * n + j] == r.span()[j * n + i]);
  }
}

TEST_CASE("host_buffer moves and cannot be copied") {
  static_assert(!std::is_copy_constructible_v<host_buffer<float>>);
  host_buffer<float> from(10);
  host_buffer<float> to = std::move(from);
  CHECK(from.span().empty());
  CHECK(to.span().size() == 10);
  from = std::move(to);
  CHECK(to.span().empty());
  CHECK(from.span().size() == 10);
  CHECK(host_buffer<float>().span().empty());
}

TEST_CASE("checked builds poison fresh memory") {
  if (!checked) return;
  const host_buffer<float> fresh(100);
  for (const float x : fresh.span()) CHECK(std::isnan(x));
  const host_buffer<bfloat16> narrow(100);
  for (const bfloat16 x : narrow.span()) CHECK(std::isnan(static_cast<float>(x)));
}

TEST_CASE("the sum of squares of floats is exact where doubles are") {
  // 2^24 + 1 terms of one; a float would stop counting at 2^24.
  host_buffer<float> ones((mfsdp::index_t{1} << 24) + 1);
  eigen_backend backend;
  backend.fill(ones.span(), 1.0f);
  CHECK(backend.sum_of_squares(ones.span()) == 16777217.0);
}

}  // namespace eigen_test
