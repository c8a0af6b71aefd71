#include "lordo/optimizer/exchange.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "lordo/optimizer/averaged.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "support/golden.hpp"
#include "support/site_gradients.hpp"

namespace exchange_test {

using namespace mfsdp;
using lordo::averaged;
using lordo::exchange_low_rank;
using lordo::local_steps;
using lordo::outer_average;
using lordo::outer_nesterov;
using mfsdp_test::mean_of;
using mfsdp_test::parameters_equal;
using mfsdp_test::relative_distance;
using mfsdp_test::site_gradients;
using mfsdp_test::sites_of;
using mfsdp_test::wavy_matrix;

namespace {

// W <- W + G of whole matrices, so that a parameter is the sum of what its rule was given.
struct adder {
  static constexpr std::string_view name = "adder";
  static constexpr bool whole_matrix = true;
  index_t flops(matrix_shape s) const { return s.elements(); }
  std::array<state_spec, 0> states(matrix_shape) const { return {}; }
  index_t workspace_size(matrix_shape) const { return 0; }
  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 0>&, matrix_view<T> w,
              matrix_view<const T> g, const update_context<T>&) const {
    backend.transform([](auto& x, const auto& y) { x = x + y; }, w.flat(), g.flat());
  }
};

constexpr matrix_shape shape{7, 9};
using averaged_adder = averaged<adder, exchange_low_rank>;
// States of averaged_adder: the mean gradient, which is not kept, then those of the exchange.
constexpr std::size_t residual = 1 + exchange_low_rank::residual;
constexpr std::size_t left = 1 + exchange_low_rank::left;
constexpr std::size_t right = 1 + exchange_low_rank::right;

using matrix = std::vector<double>;

void add(matrix& to, const matrix& x, double factor = 1) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

// a^T b for a (k x m) and b (k x n).
matrix product(const matrix& a, const matrix& b, std::size_t k) {
  const std::size_t m = a.size() / k;
  const std::size_t n = b.size() / k;
  matrix c(m * n, 0.0);
  for (std::size_t l = 0; l < k; ++l) {
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[l * m + i] * b[l * n + j];
    }
  }
  return c;
}

template <class Sites>
matrix mean_state(const Sites& sites, std::size_t k) {
  std::vector<matrix> all;
  for (std::size_t m = 0; m < sites.size(); ++m) all.push_back(sites.state(k, m));
  return mean_of(all);
}

}  // namespace

TEST_CASE("an exchange of low rank sends r (rows + cols) numbers and splits A exactly") {
  auto sites = sites_of<double>(averaged_adder{.exchange = {.rank = 2}}, shape, 3);
  matrix before = sites.parameter();
  std::vector<matrix> kept(3, matrix(63, 0.0));
  for (int t = 1; t <= 4; ++t) {
    const auto gradients = site_gradients<double>(shape, 3, t);
    const std::int64_t sent = sites.exchanged();
    sites.step(gradients);
    CHECK(sites.exchanged() - sent == 2 * (7 + 9));
    CHECK(parameters_equal(sites));

    // mean(A + E) = result + mean(E)
    for (std::size_t m = 0; m < 3; ++m) add(kept[m], gradients[m]);
    matrix result = sites.parameter();
    add(result, before, -1);
    matrix sum = result;
    add(sum, mean_state(sites, residual));
    CHECK(relative_distance(sum, mean_of(kept)) < 1e-13);
    CHECK(relative_distance(product(sites.state(left), sites.state(right), 2), result) < 1e-13);

    // The rows of L are orthonormal, and a site keeps what is orthogonal to them.
    const matrix l = sites.state(left);
    matrix flipped;
    for (std::size_t i = 0; i < 7; ++i) flipped.insert(flipped.end(), {l[i], l[7 + i]});
    CHECK(relative_distance(product(flipped, flipped, 7), {1, 0, 0, 1}) < 1e-13);
    for (std::size_t m = 0; m < 3; ++m) {
      matrix expected = kept[m];
      const matrix taken = product(flipped, kept[m], 7);
      add(expected, product(l, taken, 2), -1);
      kept[m] = sites.state(residual, m);
      CHECK(relative_distance(kept[m], expected) < 1e-13);
    }
    before = sites.parameter();
  }
}

TEST_CASE("with feedback nothing is lost: what was sent and what is kept telescope") {
  constexpr int steps = 12;
  matrix total(63, 0.0);
  auto ddp = sites_of<double>(averaged_adder{.exchange = {.rank = 2}}, shape, 3);
  auto local = sites_of<double>(
      local_steps{
          .inner = adder{}, .periods = {.parameters = 3}, .exchange = exchange_low_rank{.rank = 2}},
      shape, 3);
  for (int t = 1; t <= steps; ++t) {
    const auto gradients = site_gradients<double>(shape, 3, t);
    add(total, mean_of(gradients));
    ddp.step(gradients);
    local.step(gradients);
  }
  CHECK(local.exchanged() == steps / 3 * 2 * (7 + 9));
  CHECK(parameters_equal(local));
  const auto gained = [&](const auto& sites, std::size_t kept) {
    matrix x = sites.parameter();
    add(x, wavy_matrix<double>(shape), -1);
    CHECK(relative_distance(x, total) > 1e-3);  // something is left to be sent
    add(x, mean_state(sites, kept));
    return x;
  };
  CHECK(relative_distance(gained(ddp, residual), total) < 1e-12);
  CHECK(relative_distance(gained(local, residual), total) < 1e-12);  // behind the anchor
}

TEST_CASE("a mean of no more than the rank is sent whole") {
  // The same left factor on all sites, other right ones.
  const matrix factor = wavy_matrix<double>({2, 7});
  std::vector<matrix> gradients;
  for (int m = 0; m < 3; ++m)
    gradients.push_back(product(factor, wavy_matrix<double>({2, 9}, 1 + m), 2));
  for (const bool feedback : {true, false}) {
    auto sites =
        sites_of<double>(averaged_adder{.exchange = {.rank = 3, .feedback = feedback}}, shape, 3);
    sites.step(gradients);
    matrix gained = sites.parameter();
    add(gained, wavy_matrix<double>(shape), -1);
    CHECK(relative_distance(gained, mean_of(gradients)) < 1e-12);
  }
}

TEST_CASE("the exchange of one matrix again and again finds its leading directions") {
  // Singular values 1, 1/2, 1/4, ... on unit vectors.
  matrix a(63, 0.0);
  for (std::size_t i = 0; i < 7; ++i) a[9 * i + i] = std::pow(0.5, static_cast<double>(i));
  auto sites =
      sites_of<double>(averaged_adder{.exchange = {.rank = 2, .feedback = false}}, shape, 1);
  CHECK(sites.state(residual).empty());
  matrix before;
  for (int t = 0; t < 30; ++t) {
    before = sites.parameter();
    sites.step({a});
  }
  matrix last = sites.parameter();
  add(last, before, -1);
  matrix leading(63, 0.0);
  leading[0] = 1;
  leading[10] = 0.5;
  CHECK(relative_distance(last, leading) < 1e-8);
}

TEST_CASE("a matrix with a side of at most the rank is averaged as it is, in one round") {
  auto sites = sites_of<float>(averaged_adder{.exchange = {.rank = 7}}, shape, 2);
  auto local = sites_of<float>(
      local_steps{
          .inner = adder{}, .periods = {.parameters = 1}, .exchange = exchange_low_rank{.rank = 7}},
      shape, 2);
  auto full =
      sites_of<float>(local_steps{.inner = adder{}, .periods = {.parameters = 1}}, shape, 2);
  for (int t = 1; t <= 3; ++t) {
    sites.step(site_gradients<float>(shape, 2, t));
    local.step(site_gradients<float>(shape, 2, t));
    full.step(site_gradients<float>(shape, 2, t));
  }
  CHECK(sites.exchanged() == 3 * 63);
  CHECK(local.exchanged() == 3 * 63);
  CHECK(local.parameter() == full.parameter());
  for (const std::size_t k : {residual, left, right}) CHECK(sites.state(k).empty());
  for (std::size_t k = 0; k < 4; ++k) CHECK(local.state(k).empty());
}

TEST_CASE("a sync after no movement moves nothing, and the next one works") {
  auto sites = sites_of<float>(local_steps{.inner = adder{},
                                           .periods = {.parameters = 1},
                                           .outer = outer_nesterov{},
                                           .exchange = exchange_low_rank{.rank = 2}},
                               shape, 2);
  const std::vector<float> zero(63, 0.0f);
  sites.step({zero, zero});
  CHECK(sites.parameter() == wavy_matrix<float>(shape));
  sites.step(site_gradients<float>(shape, 2, 1));
  CHECK(sites.parameter() != wavy_matrix<float>(shape));
  CHECK(std::ranges::all_of(sites.parameter(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("sites meet at every sync of low rank, bit for bit, and equal sites are one") {
  const auto meets = [](const auto& rule) {
    auto sites = sites_of<float>(rule, shape, 3);
    auto equal = sites_of<float>(rule, shape, 4);
    auto single = sites_of<float>(rule, shape, 1);
    for (int t = 1; t <= 9; ++t) {
      CAPTURE(t);
      const auto gradients = site_gradients<float>(shape, 3, t);
      sites.step(gradients);
      CHECK(parameters_equal(sites) == (t % 3 == 0));
      equal.step({gradients[0], gradients[0], gradients[0], gradients[0]});
      single.step({gradients[0]});
      CHECK(equal.parameter(3) == single.parameter());
    }
  };
  const lordo::sync_periods three{.parameters = 3};
  meets(local_steps{.inner = adder{}, .periods = three, .exchange = exchange_low_rank{.rank = 2}});
  meets(local_steps{.inner = adder{},
                    .periods = three,
                    .outer = outer_nesterov{.learning_rate = 0.5, .momentum = 0.5},
                    .exchange = exchange_low_rank{.rank = 2, .feedback = false}});
}

TEST_CASE("an outer momentum takes the mean of low rank as it takes that of full rank") {
  // One site without feedback, and movements of rank one: nothing is lost on the way.
  const auto run = [](const auto& exchange) {
    auto sites = sites_of<double>(local_steps{.inner = adder{},
                                              .periods = {.parameters = 2},
                                              .outer = outer_nesterov{},
                                              .exchange = exchange},
                                  shape, 1);
    const matrix g = product(wavy_matrix<double>({1, 7}), wavy_matrix<double>({1, 9}, 2), 1);
    for (int t = 1; t <= 6; ++t) sites.step({g});
    return sites.parameter();
  };
  CHECK(relative_distance(run(exchange_low_rank{.rank = 2, .feedback = false}),
                          run(lordo::exchange_full{})) < 1e-12);
}

}  // namespace exchange_test
