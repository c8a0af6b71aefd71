#include "lordo/projector/power_step.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "conformance/projector.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"
#include "support/singular.hpp"

namespace power_step_test {

using namespace mfsdp_test;
using lordo::index_t, lordo::matrix_shape, lordo::power_step;

namespace {

mfsdp::eigen_backend backend;

using bench = projector_bench<double, power_step, mfsdp::eigen_backend>;

void set(bench& to, const std::vector<double>& signal) {
  std::ranges::copy(signal, to.signal().data());
}

std::vector<double> old_of(bench& from) {
  const auto basis = from.old_basis().flat();
  return {basis.begin(), basis.end()};
}

}  // namespace

TEST_CASE("power_step conforms") {
  projector_conformance(power_step{});
}

TEST_CASE("power_step is Gram-Schmidt of the old basis times the Gram matrix") {
  const matrix_shape shape{5, 8};
  bench b({}, backend, shape, 3);
  const std::vector<double> a = wavy_matrix<double>(shape);
  set(b, a);
  const std::vector<double> old = old_of(b);
  std::vector<std::vector<double>> expected;
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<double> along(8), row(5);
    for (std::size_t i = 0; i < 5; ++i) {
      for (std::size_t j = 0; j < 8; ++j) along[j] += old[r * 5 + i] * a[i * 8 + j];
    }
    for (std::size_t i = 0; i < 5; ++i) {
      for (std::size_t j = 0; j < 8; ++j) row[i] += a[i * 8 + j] * along[j];
    }
    for (int twice = 0; twice < 2; ++twice) {
      for (const auto& before : expected) {
        double overlap = 0;
        for (std::size_t i = 0; i < 5; ++i) overlap += before[i] * row[i];
        for (std::size_t i = 0; i < 5; ++i) row[i] -= overlap * before[i];
      }
    }
    double square = 0;
    for (const double e : row) square += e * e;
    for (double& e : row) e /= std::sqrt(square);
    expected.push_back(row);
  }
  std::vector<double> flat;
  for (const auto& row : expected) flat.insert(flat.end(), row.begin(), row.end());
  CHECK(relative_distance(b.basis(), flat) < 1e-11);
}

TEST_CASE("repeated steps find the leading singular vectors") {
  const matrix_shape shape{12, 9};
  bench b({}, backend, shape, 3);
  const std::vector<double> a = gaussian(12 * 9, 5);
  set(b, a);
  std::vector<double> flipped(a.size());
  for (std::size_t i = 0; i < 12; ++i) {
    for (std::size_t j = 0; j < 9; ++j) flipped[j * 12 + i] = a[i * 9 + j];
  }
  const singular_system exact = left_singular(flipped, {9, 12});
  const std::vector<double> leading(exact.vectors.begin(), exact.vectors.begin() + 27);
  double before = sine(old_of(b), leading, 9);
  for (int step = 0; step < 60; ++step) std::ranges::copy(b.basis(), b.old_basis().data());
  const double after = sine(old_of(b), leading, 9);
  CHECK(before > 0.5);
  CHECK(after < 1e-3);
}

TEST_CASE("what a signal of rank one says comes in, the rest of the old basis stays") {
  const matrix_shape shape{9, 14};
  bench b({}, backend, shape, 4);
  const std::vector<double> x = gaussian(9, 6), y = gaussian(14, 7);
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t j = 0; j < 14; ++j) b.signal().data()[i * 14 + j] = x[i] * y[j];
  }
  const std::vector<double> old = old_of(b);
  const std::vector<double> basis = b.basis();
  std::vector<double> direction = x;
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(direction.data(), 1, 9));
  CHECK(sine(direction, basis, 9) < 1e-12);
  std::vector<double> all(old);
  all.insert(all.end(), direction.begin(), direction.end());
  backend.orthonormalize_rows(mfsdp::matrix_view<double>(all.data(), 5, 9));
  CHECK(sine(basis, all, 9) < 4e-3);
  // Three directions are those of the old span that x does not touch.
  const std::vector<double> overlap = [&] {
    std::vector<double> product(16);
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        for (std::size_t k = 0; k < 9; ++k) product[i * 4 + j] += basis[i * 9 + k] * old[j * 9 + k];
      }
    }
    return product;
  }();
  CHECK(left_singular(overlap, {4, 4}).values[2] == doctest::Approx(1).epsilon(1e-4));
}

}  // namespace power_step_test
