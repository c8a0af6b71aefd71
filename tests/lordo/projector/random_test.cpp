#include "lordo/projector/random.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "conformance/projector.hpp"

namespace random_test {

using namespace mfsdp_test;
using lordo::index_t, lordo::matrix_shape, lordo::random_projection;

namespace {

mfsdp::eigen_backend backend;

std::vector<double> draw(random_projection from, lordo::basis_draw which,
                         matrix_shape shape = {8, 20}, index_t rank = 3) {
  return projector_bench<double, random_projection, mfsdp::eigen_backend>(from, backend, shape,
                                                                          rank)
      .basis(which);
}

}  // namespace

TEST_CASE("random_projection conforms") {
  projector_conformance(random_projection{});
  projector_conformance(random_projection{.seed = 42});
}

TEST_CASE("seed, item and step each give another basis, and equal ones the same") {
  const auto first = draw({.seed = 1}, {2, 3});
  CHECK(draw({.seed = 1}, {2, 3}) == first);
  CHECK(draw({.seed = 2}, {2, 3}) != first);
  CHECK(draw({.seed = 1}, {3, 3}) != first);
  CHECK(draw({.seed = 1}, {2, 4}) != first);
  CHECK(draw({.seed = 1}, {3, 2}) != first);
}

TEST_CASE("the first numbers never change, on any machine") {
  // A basis of rank one is its row of integers, normalised.
  const std::vector<double> basis = draw({.seed = 7}, {1, 2}, {5, 5}, 1);
  const double expected[] = {0.033827, -0.358607, 0.123320, -1, 0.815320};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(basis[i] / -basis[3] == doctest::Approx(expected[i]).epsilon(1e-4));
  }
}

TEST_CASE("no direction is preferred") {
  constexpr int draws = 2000;
  std::vector<double> mean(64);
  for (int i = 0; i < draws; ++i) {
    const auto basis = draw({}, {0, i});
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t a = 0; a < 8; ++a) {
        for (std::size_t b = 0; b < 8; ++b) {
          mean[a * 8 + b] += basis[k * 8 + a] * basis[k * 8 + b] / draws;
        }
      }
    }
  }
  // E[B^T B] = 3/8 I; an entry's own deviation is about 0.2, that of the mean 0.005.
  for (std::size_t a = 0; a < 8; ++a) {
    for (std::size_t b = 0; b < 8; ++b) {
      CHECK(std::abs(mean[a * 8 + b] - (a == b ? 0.375 : 0.0)) < 0.03);
    }
  }
}

}  // namespace random_test
