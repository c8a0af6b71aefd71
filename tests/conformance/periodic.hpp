// Conformance of a PeriodicOptimizer, beside that of an Optimizer, for this library's and for
// yours: call periodic_conformance(my_rule, steps) in a doctest case, with enough steps for every
// exchange to happen.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"
#include "support/plain_sites.hpp"

namespace mfsdp_test {

template <class T>
std::vector<T> site_gradient(mfsdp::index_t size, std::size_t site, std::int64_t step) {
  std::vector<T> g;
  for (mfsdp::index_t i = 0; i < size; ++i) {
    const double x = static_cast<double>(i);
    g.push_back(
        static_cast<T>(std::sin(0.8 + 2.3 * x + 0.13 * x * x + 0.7 * static_cast<double>(step)) +
                       0.4 * std::cos(1.1 * x * static_cast<double>(site + 1))));
  }
  return g;
}

// Three sites with gradients of their own meet; one may have an unusable gradient in a step.
template <class T, class O>
void sites_conformance(const O& rule, mfsdp::matrix_shape shape, std::int64_t steps) {
  CAPTURE(shape.rows);
  CAPTURE(shape.cols);
  constexpr std::size_t sites = 3;
  constexpr std::size_t states = std::tuple_size_v<mfsdp::state_spans<O, T>>;
  const std::vector<T> start(static_cast<std::size_t>(shape.elements()), T(0.25));
  plain_sites<T, O> first(rule, shape, sites, start);
  plain_sites<T, O> again(rule, shape, sites, start);
  bool met = false;
  for (std::int64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    std::vector<std::vector<T>> gradients;
    for (std::size_t i = 0; i < sites; ++i) {
      const bool unusable = step == 2 && i == 1;
      gradients.push_back(unusable ? std::vector<T>{}
                                   : site_gradient<T>(shape.elements(), i, step));
    }
    first.step(gradients);
    again.step(gradients);

    // What was replaced by means is equal on all sites, to the last bit, and so is all that is
    // made of it: a state that a round exchanges is not changed by what a site has to itself.
    std::array<bool, 1 + states> exchanged{};
    for (int round = O::rounds_before_update;
         round < O::rounds_before_update + O::rounds_after_update; ++round) {
      const auto flags = rule.exchanges(shape, {step, 0, round});
      for (std::size_t k = 0; k < flags.size(); ++k) exchanged[k] = exchanged[k] || flags[k];
    }
    met = met || std::ranges::find(exchanged, true) != exchanged.end();
    for (std::size_t i = 0; i < sites; ++i) {
      if (exchanged[0]) CHECK(first.parameter(i) == first.parameter(0));
      for (std::size_t k = 0; k < states; ++k) {
        if (exchanged[1 + k]) CHECK(first.state(k, i) == first.state(k, 0));
      }
      CHECK(all_finite<T>(first.parameter(i)));
      CHECK(first.parameter(i) == again.parameter(i));
      for (std::size_t k = 0; k < states; ++k) CHECK(first.state(k, i) == again.state(k, i));
    }
  }
  CHECK(met);
}

// For rules that work on any piece: the same flags, and every cut gives the bits of the whole.
template <class T, class O>
void piecewise_sites_conformance(const O& rule, std::int64_t steps) {
  constexpr std::size_t states = std::tuple_size_v<mfsdp::state_spans<O, T>>;
  constexpr mfsdp::index_t size = 1500;
  const auto part = [](const std::vector<T>& x, mfsdp::index_t from, mfsdp::index_t to) {
    return std::vector<T>(x.begin() + from, x.begin() + to);
  };
  const auto train = [&](std::vector<mfsdp::index_t> cuts) {
    cuts.push_back(size);
    std::vector<std::vector<T>> results(1 + states);
    mfsdp::index_t from = 0;
    for (const mfsdp::index_t to : cuts) {
      const std::vector<T> start(static_cast<std::size_t>(to - from), T(0.25));
      plain_sites<T, O> piece(rule, {1, to - from}, 2, start);
      for (std::int64_t step = 1; step <= steps; ++step) {
        CHECK(rule.exchanges({1, to - from}, {step, 0, O::rounds_before_update}) ==
              rule.exchanges({1, size}, {step, 0, O::rounds_before_update}));
        piece.step({part(site_gradient<T>(size, 0, step), from, to),
                    part(site_gradient<T>(size, 1, step), from, to)});
      }
      const auto append = [](std::vector<T>& all, const std::vector<T>& more) {
        all.insert(all.end(), more.begin(), more.end());
      };
      append(results[0], piece.parameter());
      for (std::size_t k = 0; k < states; ++k) {
        if (rule.states({1, size})[k].elements == size) append(results[1 + k], piece.state(k));
      }
      from = to;
    }
    return results;
  };
  const auto whole = train({});
  CHECK(train({1024}) == whole);
  CHECK(train({1, 70, 133, 1499}) == whole);
}

template <mfsdp::PeriodicOptimizer O>
void periodic_conformance(const O& rule, std::int64_t steps) {
  static_assert(mfsdp::ExchangesOn<O, mfsdp::eigen_backend>);
  static_assert(O::rounds_before_update >= 0 && O::rounds_after_update >= 0);
  for (const mfsdp::matrix_shape shape : {mfsdp::matrix_shape{1, 9}, {7, 12}, {12, 7}}) {
    // Nothing is exchanged that is not there, all is exact, and the flags are a pure function.
    const auto specs = rule.states(shape);
    for (std::int64_t step = 1; step <= steps; ++step) {
      for (int round = 0; round < O::rounds_before_update + O::rounds_after_update; ++round) {
        const auto flags = rule.exchanges(shape, {step, 5, round});
        CHECK(rule.exchanges(shape, {step, 5, round}) == flags);
        for (std::size_t k = 0; k < specs.size(); ++k) {
          if (flags[1 + k]) CHECK(specs[k].elements > 0);
        }
      }
    }
    for (const mfsdp::state_spec& state : specs) CHECK(state.exact);
    sites_conformance<float>(rule, shape, steps);
    sites_conformance<double>(rule, shape, steps);
  }
  if constexpr (!O::whole_matrix) {
    piecewise_sites_conformance<float>(rule, steps);
    piecewise_sites_conformance<double>(rule, steps);
  }
}

}  // namespace mfsdp_test
