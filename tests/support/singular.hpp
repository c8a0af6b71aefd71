// Singular vectors and spans by plain loops, apart from the library's own decompositions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "mfsdp/view.hpp"

namespace mfsdp_test {

struct singular_system {
  std::vector<double> values;   // descending
  std::vector<double> vectors;  // n x n, the left vector of values[i] in row i
};

// Of a (n x m), by one-sided Jacobi rotations of its rows.
inline singular_system left_singular(const std::vector<double>& a, mfsdp::matrix_shape shape) {
  const auto n = static_cast<std::size_t>(shape.rows);
  const auto m = static_cast<std::size_t>(shape.cols);
  std::vector<std::vector<double>> rows(n), u(n, std::vector<double>(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) {
    rows[i].assign(a.begin() + static_cast<std::ptrdiff_t>(i * m),
                   a.begin() + static_cast<std::ptrdiff_t>((i + 1) * m));
    u[i][i] = 1;
  }
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    double sum = 0;
    for (std::size_t k = 0; k < x.size(); ++k) sum += x[k] * y[k];
    return sum;
  };
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        const double ii = dot(rows[i], rows[i]), jj = dot(rows[j], rows[j]);
        const double ij = dot(rows[i], rows[j]);
        if (ij == 0 || std::abs(ij) <= 1e-17 * std::sqrt(ii * jj)) continue;
        off = std::max(off, std::abs(ij) / std::sqrt(ii * jj));
        const double zeta = (jj - ii) / (2 * ij);
        const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::hypot(1.0, zeta));
        const double c = 1 / std::hypot(1.0, t), s = c * t;
        for (auto* w : {&rows, &u}) {
          for (std::size_t k = 0; k < (*w)[i].size(); ++k) {
            const double x = (*w)[i][k], y = (*w)[j][k];
            (*w)[i][k] = c * x - s * y;
            (*w)[j][k] = s * x + c * y;
          }
        }
      }
    }
    if (off < 1e-16) break;
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < n; ++i) order.emplace_back(-std::sqrt(dot(rows[i], rows[i])), i);
  std::ranges::sort(order);
  singular_system system;
  for (const auto& [value, i] : order) {
    system.values.push_back(-value);
    system.vectors.insert(system.vectors.end(), u[i].begin(), u[i].end());
  }
  return system;
}

// The sine of the largest angle from the rows of `a` to the span of the orthonormal rows of `b`,
// both of n columns: the spectral norm of a - a b^T b.
inline double sine(const std::vector<double>& a, const std::vector<double>& b, std::size_t n) {
  std::vector<double> rest = a;
  for (std::size_t i = 0; i < a.size() / n; ++i) {
    for (std::size_t j = 0; j < b.size() / n; ++j) {
      double along = 0;
      for (std::size_t k = 0; k < n; ++k) along += a[i * n + k] * b[j * n + k];
      for (std::size_t k = 0; k < n; ++k) rest[i * n + k] -= along * b[j * n + k];
    }
  }
  return left_singular(rest,
                       {static_cast<mfsdp::index_t>(a.size() / n), static_cast<mfsdp::index_t>(n)})
      .values[0];
}

// Independent normal numbers, the same for the same seed.
inline std::vector<double> gaussian(std::size_t count, unsigned seed, double scale = 1) {
  std::mt19937_64 bits(seed);
  const auto uniform = [&] { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; };
  std::vector<double> x;
  for (std::size_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    x.push_back(scale * radius * std::cos(2 * 3.14159265358979323846 * uniform()));
  }
  return x;
}

}  // namespace mfsdp_test
