// Gradients that differ from site to site and from step to step, and what tests ask of sites.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/one_matrix.hpp"
#include "support/plain_sites.hpp"

namespace mfsdp_test {

template <class T>
std::vector<T> site_gradient(mfsdp::matrix_shape shape, std::size_t site, std::int64_t step) {
  std::vector<T> g;
  const double phase = 1.9 * static_cast<double>(step) + 0.7 * static_cast<double>(site);
  for (mfsdp::index_t i = 0; i < shape.elements(); ++i) {
    const double x = static_cast<double>(i);
    g.push_back(static_cast<T>(std::sin(0.8 + 2.3 * x + 0.37 * x * x + phase * (1 + 0.1 * x))));
  }
  return g;
}

// One for each site.
template <class T>
std::vector<std::vector<T>> site_gradients(mfsdp::matrix_shape shape, std::size_t sites,
                                           std::int64_t step) {
  std::vector<std::vector<T>> all;
  for (std::size_t m = 0; m < sites; ++m) all.push_back(site_gradient<T>(shape, m, step));
  return all;
}

template <class T>
std::vector<T> mean_of(const std::vector<std::vector<T>>& all) {
  std::vector<T> mean = all.at(0);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t m = 1; m < all.size(); ++m) mean[i] += all[m][i];
    mean[i] /= static_cast<T>(all.size());
  }
  return mean;
}

// `count` sites on a parameter that is no special one.
template <class T, class O>
plain_sites<T, O> sites_of(const O& rule, mfsdp::matrix_shape shape, std::size_t count,
                           std::size_t item = 0) {
  return {rule, shape, count, wavy_matrix<T>(shape), item};
}

template <class Sites>
bool parameters_equal(const Sites& sites) {
  for (std::size_t m = 1; m < sites.size(); ++m) {
    if (sites.parameter(m) != sites.parameter(0)) return false;
  }
  return true;
}

// Parameters and all states.
template <class Sites>
bool sites_equal(const Sites& sites) {
  bool equal = parameters_equal(sites);
  for (std::size_t m = 1; m < sites.size(); ++m) {
    for (std::size_t k = 0; k < Sites::state_count; ++k) {
      equal = equal && sites.state(k, m) == sites.state(k, 0);
    }
  }
  return equal;
}

}  // namespace mfsdp_test
