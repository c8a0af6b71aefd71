// Sites on f(X) = |X - target|^2 / 2 with noise of their own in the gradient: the problem on which
// what LoRDO can and cannot do shows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "support/plain_sites.hpp"
#include "support/singular.hpp"

namespace mfsdp_test {

struct quadratic {
  mfsdp::matrix_shape shape{8, 8};
  std::size_t sites = 4;
  double noise = 0.1;
  std::vector<double> start = std::vector<double>(static_cast<std::size_t>(shape.elements()), 0.0);
  std::vector<double> target = gaussian(static_cast<std::size_t>(shape.elements()), 7);
  bool same_data = false;  // all sites see the same noise

  [[nodiscard]] double loss(const std::vector<double>& x) const {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - target[i]) * (x[i] - target[i]) / 2;
    return sum;
  }
  // The least loss of start + B^T Y for any Y: what a span that never moves leaves.
  [[nodiscard]] double floor(const std::vector<double>& basis) const {
    std::vector<double> rest(start.size());
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] = start[i] - target[i];
    const auto n = static_cast<std::size_t>(shape.rows), m = static_cast<std::size_t>(shape.cols);
    for (std::size_t k = 0; k < basis.size() / n; ++k) {
      for (std::size_t j = 0; j < m; ++j) {
        double along = 0;
        for (std::size_t i = 0; i < n; ++i) along += basis[k * n + i] * rest[i * m + j];
        for (std::size_t i = 0; i < n; ++i) rest[i * m + j] -= along * basis[k * n + i];
      }
    }
    double sum = 0;
    for (const double e : rest) sum += e * e / 2;
    return sum;
  }

  template <class T>
  [[nodiscard]] std::vector<T> gradient(const std::vector<T>& x, std::size_t site, int step) const {
    const unsigned seed =
        static_cast<unsigned>(1000 * step) + static_cast<unsigned>(same_data ? 0 : site);
    const std::vector<double> disturbance = gaussian(x.size(), seed, noise);
    std::vector<T> g;
    for (std::size_t i = 0; i < x.size(); ++i) {
      g.push_back(static_cast<T>(static_cast<double>(x[i]) - target[i] + disturbance[i]));
    }
    return g;
  }

  template <class T = double, class O>
  [[nodiscard]] plain_sites<T, O> make(const O& rule) const {
    return plain_sites<T, O>(rule, shape, sites, std::vector<T>(start.begin(), start.end()));
  }
  // Steps from `from` on, `count` of them; `seen` after each.
  template <class T, class O>
  void train(
      plain_sites<T, O>& all, int from, int count,
      const std::function<void(int)>& seen = [](int) {}) const {
    for (int step = from; step < from + count; ++step) {
      std::vector<std::vector<T>> gradients;
      for (std::size_t i = 0; i < sites; ++i) {
        gradients.push_back(gradient<T>(all.parameter(i), i, step));
      }
      all.step(gradients);
      seen(step);
    }
  }
};

// From somewhere else than zero.
inline quadratic started_quadratic() {
  quadratic problem;
  problem.start = gaussian(64, 8, 0.5);
  return problem;
}

template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

}  // namespace mfsdp_test
