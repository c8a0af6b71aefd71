#include "lordo/projector/svd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "conformance/projector.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"
#include "support/singular.hpp"

namespace svd_test {

using namespace mfsdp_test;
using lordo::index_t, lordo::matrix_shape, lordo::svd;

namespace {

mfsdp::eigen_backend backend;

template <class T>
std::vector<double> basis_of(const std::vector<double>& signal, matrix_shape shape, index_t rank) {
  projector_bench<T, svd, mfsdp::eigen_backend> bench(svd{}, backend, shape, rank);
  for (std::size_t i = 0; i < signal.size(); ++i) {
    bench.signal().data()[i] = static_cast<T>(signal[i]);
  }
  const std::vector<T> basis = bench.basis();
  return {basis.begin(), basis.end()};
}

template <class T>
std::vector<double> old_basis_of(matrix_shape shape, index_t rank) {
  projector_bench<T, svd, mfsdp::eigen_backend> bench(svd{}, backend, shape, rank);
  const auto basis = bench.old_basis().flat();
  return {basis.begin(), basis.end()};
}

}  // namespace

TEST_CASE("svd conforms") {
  projector_conformance(svd{});
}

TEST_CASE("svd finds the leading singular vectors, in order, the largest entry positive") {
  const matrix_shape shape{7, 11};
  const std::vector<double> a = wavy_matrix<double>(shape);
  const singular_system exact = left_singular(a, shape);
  const std::vector<double> basis = basis_of<double>(a, shape, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const double* expected = exact.vectors.data() + i * 7;
    const double largest = *std::max_element(
        expected, expected + 7, [](double x, double y) { return std::abs(x) < std::abs(y); });
    for (std::size_t k = 0; k < 7; ++k) {
      CHECK(basis[i * 7 + k] ==
            doctest::Approx(largest < 0 ? -expected[k] : expected[k]).epsilon(1e-10));
    }
  }
}

TEST_CASE("the right side of a tall matrix is the left side of its transpose") {
  const matrix_shape shape{11, 7};
  const std::vector<double> a = wavy_matrix<double>(shape);
  std::vector<double> flipped(a.size());
  for (std::size_t i = 0; i < 11; ++i) {
    for (std::size_t j = 0; j < 7; ++j) flipped[j * 11 + i] = a[i * 7 + j];
  }
  const auto right = basis_of<double>(a, shape, 3);
  const auto left = basis_of<double>(flipped, {7, 11}, 3);
  CHECK(relative_distance(right, left) < 1e-12);
}

TEST_CASE_TEMPLATE("directions that a signal of lower rank lacks come from the old basis", T, float,
                   double) {
  const matrix_shape shape{9, 14};
  const double precision = std::is_same_v<T, float> ? 3e-3 : 1e-6;
  // Rank 2 under rank 4.
  const std::vector<double> x = gaussian(18, 1), y = gaussian(28, 2);
  std::vector<double> signal(9 * 14);
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 14; ++j) {
      signal[i * 14 + j] = x[i] * y[j] + 0.2 * x[9 + i] * y[14 + j];
    }
  }
  const auto old = old_basis_of<T>(shape, 4);
  const auto basis = basis_of<T>(signal, shape, 4);
  const singular_system exact = left_singular(signal, shape);
  const std::vector<double> leading(exact.vectors.begin(), exact.vectors.begin() + 18);
  CHECK(sine(leading, basis, 9) < precision);

  // All of the new basis lies in the span of signal and old basis.
  std::vector<double> all(old);
  all.insert(all.end(), leading.begin(), leading.end());
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(all.data(), 6, 9));
  CHECK(sine(basis, all, 9) < precision);
}

TEST_CASE("svd resolves singular values far apart") {
  // In double the span of a value 1e-6 below the largest is right to 1e-8: the Gram matrix alone
  // would give 1e-4.
  const matrix_shape shape{8, 8};
  std::vector<double> u = gaussian(64, 3), v = gaussian(64, 4);
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(u.data(), 8, 8));
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(v.data(), 8, 8));
  std::vector<double> signal(64);
  const double values[] = {1, 1e-3, 1e-6};
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < 8; ++j)
        signal[i * 8 + j] += values[k] * u[k * 8 + i] * v[k * 8 + j];
    }
  }
  const std::vector<double> leading(u.begin(), u.begin() + 24);
  CHECK(sine(basis_of<double>(signal, shape, 3), leading, 8) < 1e-8);
}

// --------------------------------------------------------------------------- noise in the signal

namespace {

struct noise_study {
  double sine = 0;         // mean over trials
  double worst_bound = 0;  // largest sine over the bound of Wedin, where it holds
};

// The basis of S + noise / sqrt(batch), where S has singular values 1, 1/2, 1/3, ...
noise_study study(index_t rank, double noise, double batch, unsigned trials) {
  constexpr std::size_t n = 24;
  std::vector<double> u = gaussian(n * n, 11), v = gaussian(n * n, 12);
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(u.data(), n, n));
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(v.data(), n, n));
  const double r = static_cast<double>(rank);
  const double gap = 1 / r - 1 / (r + 1);
  noise_study result;
  for (unsigned trial = 0; trial < trials; ++trial) {
    std::vector<double> signal = gaussian(n * n, 100 + trial, noise / std::sqrt(batch));
    const double size = left_singular(signal, {n, n}).values[0];
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          signal[i * n + j] += u[k * n + i] * v[k * n + j] / static_cast<double>(k + 1);
        }
      }
    }
    const std::vector<double> leading(u.begin(), u.begin() + static_cast<std::ptrdiff_t>(n) * rank);
    const double angle = sine(basis_of<double>(signal, {n, n}, rank), leading, n);
    result.sine += angle / trials;
    if (gap > size) result.worst_bound = std::max(result.worst_bound, angle * (gap - size) / size);
  }
  return result;
}

}  // namespace

TEST_CASE("noise turns the basis by less than Wedin's bound, by half at four times the batch") {
  double before = 0;
  for (const double batch : {1.0, 4.0, 16.0, 64.0}) {
    CAPTURE(batch);
    const noise_study now = study(4, 0.004, batch, 12);
    CHECK(now.sine > 0);
    CHECK(now.worst_bound > 0);
    CHECK(now.worst_bound < 1);
    if (before > 0) {
      CHECK(before / now.sine > 1.5);
      CHECK(before / now.sine < 2.5);
    }
    before = now.sine;
  }
}

TEST_CASE("noise turns a larger basis further") {
  double before = 0;
  for (const index_t rank : {1, 2, 4, 8}) {
    CAPTURE(rank);
    const noise_study now = study(rank, 0.001, 4, 8);
    CHECK(now.sine > 1.3 * before);
    CHECK(now.worst_bound < 1);
    before = now.sine;
  }
}

}  // namespace svd_test
