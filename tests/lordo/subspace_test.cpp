#include "lordo/subspace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "support/one_matrix.hpp"

namespace subspace_test {

using namespace lordo;
using mfsdp_test::wavy_matrix;

namespace {

mfsdp::eigen_backend backend;

matrix_view<const double> view(const std::vector<double>& x, matrix_shape shape) {
  return {x.data(), shape};
}

std::vector<double> transposed(const std::vector<double>& x, matrix_shape shape) {
  std::vector<double> y(x.size());
  for (index_t i = 0; i < shape.rows; ++i) {
    for (index_t j = 0; j < shape.cols; ++j) {
      y[static_cast<std::size_t>(j * shape.rows + i)] =
          x[static_cast<std::size_t>(i * shape.cols + j)];
    }
  }
  return y;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

std::vector<double> orthonormal(matrix_shape shape, double phase = 1) {
  std::vector<double> b = wavy_matrix<double>(shape, phase);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] += 0.3 * std::cos(phase * double(i * i));
  backend.orthonormalize_rows(matrix_view<double>(b.data(), shape));
  return b;
}

struct moments {
  std::vector<double> u, v;
};

moments rotated(moments m, projection_side side, const std::vector<double>& r, double c1,
                double c2) {
  const matrix_shape shape =
      side == projection_side::left ? matrix_shape{2, 5} : matrix_shape{5, 2};
  std::vector<double> workspace(static_cast<std::size_t>(rotation_workspace(shape, 2)));
  rotate_moments(backend, side, view(r, {2, 2}), c1, c2, matrix_view<double>(m.u.data(), shape),
                 matrix_view<double>(m.v.data(), shape), workspace);
  return m;
}

}  // namespace

TEST_CASE("the smaller side is the one that is projected, the rows of a square") {
  static_assert(side_of({3, 4}) == projection_side::left);
  static_assert(side_of({4, 4}) == projection_side::left);
  static_assert(side_of({4, 3}) == projection_side::right);
  static_assert(basis_shape({3, 40}, 2) == matrix_shape{2, 3});
  static_assert(basis_shape({40, 3}, 2) == matrix_shape{2, 3});
  static_assert(projected_shape({3, 40}, 2) == matrix_shape{2, 40});
  static_assert(projected_shape({40, 3}, 2) == matrix_shape{40, 2});
}

TEST_CASE("project and lift are what the formulas say, on the right as on the left") {
  const matrix_shape shape{3, 5};
  const std::vector<double> a = wavy_matrix<double>(shape);
  const std::vector<double> basis = orthonormal({2, 3});
  std::vector<double> expected(10), y(10, 7.0), back(15, 7.0), expected_back(15);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 5; ++j) {
      for (std::size_t k = 0; k < 3; ++k) expected[i * 5 + j] += basis[i * 3 + k] * a[k * 5 + j];
    }
  }
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t j = 0; j < 5; ++j) {
      for (std::size_t i = 0; i < 2; ++i) {
        expected_back[k * 5 + j] += basis[i * 3 + k] * expected[i * 5 + j];
      }
    }
  }
  project<decltype(backend), double>(backend, 1, view(basis, {2, 3}), view(a, shape), 0,
                                     matrix_view<double>(y.data(), 2, 5));
  CHECK(distance(y, expected) < 1e-14);
  lift<decltype(backend), double>(backend, 1, view(basis, {2, 3}), view(y, {2, 5}), 0,
                                  matrix_view<double>(back.data(), shape));
  CHECK(distance(back, expected_back) < 1e-14);

  const std::vector<double> b = transposed(a, shape);
  std::vector<double> right(10), right_back(15);
  project<decltype(backend), double>(backend, 1, view(basis, {2, 3}), view(b, {5, 3}), 0,
                                     matrix_view<double>(right.data(), 5, 2));
  CHECK(distance(transposed(right, {5, 2}), y) < 1e-14);
  lift<decltype(backend), double>(backend, 1, view(basis, {2, 3}), view(right, {5, 2}), 0,
                                  matrix_view<double>(right_back.data(), 5, 3));
  CHECK(distance(transposed(right_back, {5, 3}), back) < 1e-14);

  // alpha and beta.
  project<decltype(backend), double>(backend, 2, view(basis, {2, 3}), view(a, shape), -1,
                                     matrix_view<double>(y.data(), 2, 5));
  CHECK(distance(y, expected) < 1e-14);
}

TEST_CASE("a rotation is that of LDAdam") {
  const std::vector<double> r = {0.8, -0.3, 0.5, 0.6};
  const moments before{wavy_matrix<double>({2, 5}, 0.3), wavy_matrix<double>({2, 5}, 0.2)};
  moments m = before;
  for (double& v : m.v) v = v * v;
  const moments start = m;
  const double c1 = 0.4, c2 = 0.3;
  const moments after = rotated(m, projection_side::left, r, c1, c2);
  for (std::size_t j = 0; j < 5; ++j) {
    for (std::size_t i = 0; i < 2; ++i) {
      double mean = 0, variance = 0;
      for (std::size_t k = 0; k < 2; ++k) {
        const double u = start.u[k * 5 + j] / c1;
        mean += r[i * 2 + k] * u;
        variance += r[i * 2 + k] * r[i * 2 + k] * (start.v[k * 5 + j] / c2 - u * u);
      }
      CHECK(after.u[i * 5 + j] == doctest::Approx(mean * c1).epsilon(1e-12));
      CHECK(after.v[i * 5 + j] ==
            doctest::Approx(c2 * std::abs(variance + mean * mean)).epsilon(1e-12));
    }
  }

  moments right{transposed(start.u, {2, 5}), transposed(start.v, {2, 5})};
  right = rotated(right, projection_side::right, r, c1, c2);
  CHECK(distance(transposed(right.u, {5, 2}), after.u) < 1e-14);
  CHECK(distance(transposed(right.v, {5, 2}), after.v) < 1e-14);

  // The first moment alone, in the same way.
  std::vector<double> u = start.u;
  std::vector<double> workspace(static_cast<std::size_t>(rotation_workspace({2, 5}, 2)));
  rotate_first_moment(backend, projection_side::left, view(r, {2, 2}),
                      matrix_view<double>(u.data(), 2, 5), workspace);
  CHECK(distance(u, after.u) < 1e-15);
}

TEST_CASE("the identity changes nothing, a flipped sign only the first moment") {
  moments start{wavy_matrix<double>({2, 5}, 0.3), wavy_matrix<double>({2, 5}, 0.2)};
  for (std::size_t i = 0; i < start.v.size(); ++i) {
    start.v[i] = start.v[i] * start.v[i] + start.u[i] * start.u[i];
  }
  const moments same = rotated(start, projection_side::left, {1, 0, 0, 1}, 0.5, 0.25);
  CHECK(distance(same.u, start.u) == 0);
  CHECK(distance(same.v, start.v) < 1e-15);

  const moments flipped = rotated(start, projection_side::left, {1, 0, 0, -1}, 0.5, 0.25);
  CHECK(distance(flipped.v, start.v) < 1e-15);
  for (std::size_t i = 0; i < 10; ++i) CHECK(flipped.u[i] == (i < 5 ? start.u[i] : -start.u[i]));

  // The second moment is never negative.
  const moments odd = rotated({std::vector<double>(10, 1.0), std::vector<double>(10, 0.1)},
                              projection_side::left, {0.6, -0.8, 0.8, 0.6}, 1, 1);
  CHECK(std::ranges::min(odd.v) >= 0);
}

TEST_CASE("a rotated second moment is that of rotated independent numbers") {
  // Two independent coordinates with means 0.3, -0.2 and deviations 0.5, 1.5, turned by 0.7.
  std::mt19937_64 bits(1);
  std::normal_distribution<double> normal;
  const double c = std::cos(0.7), s = std::sin(0.7);
  double first = 0, second = 0;
  constexpr int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    const double x = 0.3 + 0.5 * normal(bits);
    const double y = -0.2 + 1.5 * normal(bits);
    first += (c * x - s * y) * (c * x - s * y) / draws;
    second += (s * x + c * y) * (s * x + c * y) / draws;
  }
  moments m{std::vector<double>(10, 0.3), std::vector<double>(10, 0.09 + 0.25)};
  for (std::size_t i = 5; i < 10; ++i) {
    m.u[i] = -0.2;
    m.v[i] = 0.04 + 2.25;
  }
  const moments turned = rotated(m, projection_side::left, {c, -s, s, c}, 1, 1);
  CHECK(turned.v[0] == doctest::Approx(first).epsilon(0.03));
  CHECK(turned.v[5] == doctest::Approx(second).epsilon(0.03));
}

}  // namespace subspace_test
