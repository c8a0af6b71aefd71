#include "mfsdp/backend/packed_product.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "conformance/backend.hpp"

namespace packed_product_test {

using namespace mfsdp;

namespace {

// The kernels that this processor has.
std::vector<product_kernel> kernels() {
  switch (best_product_kernel()) {
    case product_kernel::avx512:
      return {product_kernel::avx2, product_kernel::avx512};
    case product_kernel::avx2:
      return {product_kernel::avx2};
    case product_kernel::none:
      break;
  }
  return {};
}

// 0.5 op(a) op(b) + beta c of made-up operands that start `offset` elements after an allocation.
struct problem {
  index_t m, n, k;
  transpose op_a = transpose::no;
  transpose op_b = transpose::no;
  float beta = 0;
  bool in_place = false;
  bool symmetric = false;  // m = n, op(b) = op(a)^T, c symmetric
  std::size_t offset = 0;

  std::vector<float> solve(product_kernel kernel,
                           decltype(packed_product)& product = packed_product) const {
    const bool flip_a = op_a == transpose::yes;
    const bool flip_b = op_b == transpose::yes;
    const std::vector<float> a = left(), b = right();
    std::vector<float> c = added();
    std::vector<float> d(at(m * n), std::numeric_limits<float>::quiet_NaN());
    if (in_place) std::ranges::copy(c, d.begin());
    if (beta == 0) std::ranges::fill(c, std::numeric_limits<float>::quiet_NaN());
    d.resize(d.size() + 16, 7.0f);  // a guard
    const matrix_view<float> out(d.data() + offset, m, n);
    product(kernel, 0.5f, {a.data() + offset, flip_a ? k : m, flip_a ? m : k}, op_a,
            {b.data() + offset, flip_b ? n : k, flip_b ? k : n}, op_b, beta,
            in_place ? out : matrix_view<float>(c.data() + offset, m, n), out);
    for (std::size_t i = 0; i < 16; ++i) CHECK(d[at(m * n) + i] == 7.0f);
    return {d.begin() + static_cast<index_t>(offset), d.end() - 16};
  }

  std::vector<float> left() const {
    return values(m * k, [](index_t i) { return mfsdp_test::sample<float>(i); });
  }
  std::vector<float> right() const {
    if (symmetric) return left();
    return values(k * n, [](index_t i) { return mfsdp_test::sample<float>(i, 1.0); });
  }
  std::vector<float> added() const {
    return values(m * n, [this](index_t i) {
      return mfsdp_test::sample<float>(symmetric ? i / n + i % n : i, 2.0);
    });
  }

  std::size_t at(index_t i) const { return offset + static_cast<std::size_t>(i); }
  template <class Of>
  std::vector<float> values(index_t count, Of of) const {
    std::vector<float> x(at(count));
    for (index_t i = 0; i < count; ++i) x[at(i)] = of(i);
    return x;
  }

  // One chain of fused multiply-adds for each block of the inner dimension.
  std::vector<float> chains(index_t block) const {
    const std::vector<float> a = left(), b = right(), c = added();
    std::vector<float> d(static_cast<std::size_t>(m * n));
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        float& x = d[static_cast<std::size_t>(i * n + j)];
        for (index_t k0 = 0; k0 < k; k0 += block) {
          float sum = 0;
          for (index_t p = k0; p < std::min(k0 + block, k); ++p) {
            sum = std::fma(a[at(op_a == transpose::yes ? p * m + i : i * k + p)],
                           b[at(op_b == transpose::yes ? j * k + p : p * n + j)], sum);
          }
          x = k0 > 0 ? std::fma(0.5f, sum, x)
                     : (beta == 0 ? 0.5f * sum : std::fma(0.5f, sum, beta * c[at(i * n + j)]));
        }
      }
    }
    return d;
  }
};

}  // namespace

TEST_CASE("each kernel gives the documented chain of fused multiply-adds, bit for bit") {
  // Around the tiles' sides (4, 8, 24, 32), and cut into blocks of 384 at most, of equal size.
  for (const product_kernel kernel : kernels()) {
    for (const index_t m : {1, 3, 4, 5, 7, 8, 9, 17}) {
      for (const index_t n : {1, 23, 24, 25, 31, 32, 33, 65}) {
        for (const index_t k : {1, 2, 4, 15, 17, 384}) {
          for (const float beta : {0.0f, 1.0f, -0.3f}) {
            const problem p{m, n, k, transpose::no, transpose::yes, beta};
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            REQUIRE(p.solve(kernel) == p.chains(384));
          }
        }
      }
    }
    const problem two_blocks{9, 33, 385, transpose::yes, transpose::no, 1.5f};
    CHECK(two_blocks.solve(kernel) == two_blocks.chains(193));
    const problem three_blocks{9, 33, 770};
    CHECK(three_blocks.solve(kernel) == three_blocks.chains(257));
  }
}

TEST_CASE("all kernels give equal bits, for every transposition, in place and at any alignment") {
  if (kernels().empty()) return;
  const product_kernel reference = kernels().front();
  for (const auto& [m, n, k] :
       {std::array<index_t, 3>{40, 70, 400}, {250, 30, 9}, {5, 1000, 65}, {249, 969, 385}}) {
    for (const transpose op_a : {transpose::no, transpose::yes}) {
      for (const transpose op_b : {transpose::no, transpose::yes}) {
        for (const float beta : {0.0f, -0.3f}) {
          problem p{m, n, k, op_a, op_b, beta};
          const std::vector<float> expected = p.solve(reference);
          for (const product_kernel kernel : kernels()) {
            CHECK(p.solve(kernel) == expected);
            problem shifted = p;
            shifted.offset = 3;
            shifted.in_place = beta != 0;
            CHECK(shifted.solve(kernel) == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("a symmetric product has the bits of the product below the diagonal, and their mirror") {
  for (const product_kernel kernel : kernels()) {
    for (const index_t n : {1, 3, 4, 8, 15, 16, 17, 24, 32, 33, 48, 49, 100, 300, 1000}) {
      for (const transpose op : {transpose::no, transpose::yes}) {
        for (const bool in_place : {false, true}) {
          CAPTURE(n);
          const transpose other = op == transpose::no ? transpose::yes : transpose::no;
          const problem p{n, n, 20, op, other, in_place ? 2.0f : 0.0f, in_place, true};
          std::vector<float> expected = p.solve(kernel);
          for (index_t i = 0; i < n; ++i) {
            for (index_t j = 0; j < i; ++j) expected[p.at(j * n + i)] = expected[p.at(i * n + j)];
          }
          CHECK(p.solve(kernel, packed_product_symmetric) == expected);
        }
      }
    }
  }
}

TEST_CASE("an empty inner dimension gives beta c, and nothing is done for an empty result") {
  for (const product_kernel kernel : kernels()) {
    const problem none{5, 40, 0, transpose::no, transpose::no, 2.0f};
    const std::vector<float> c = none.added();
    const std::vector<float> d = none.solve(kernel);
    for (std::size_t i = 0; i < d.size(); ++i) CHECK(d[i] == 2 * c[i]);
    CHECK(problem{0, 3, 4}.solve(kernel).empty());
    CHECK(problem{3, 0, 4}.solve(kernel).empty());
  }
}

}  // namespace packed_product_test
