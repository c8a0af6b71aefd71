// Sites together with what a model has besides: replicas, threads, clipping and 16-bit parameters.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/local_momentum.hpp"
#include "support/mean_gradient.hpp"
#include "support/site_training.hpp"

namespace site_axes_test {

using namespace mfsdp;
using mfsdp_test::local_momentum, mfsdp_test::mean_gradient;

namespace {

const mixed local_rules{local_momentum<true>{}, local_momentum<false>{}};
const mixed mean_rules{mean_gradient<true>{}, mean_gradient<false>{}};

// Calls check(rules) for rules that meet after and before their updates.
template <class F>
void for_both_rules(F check) {
  check(local_rules);
  check(mean_rules);
}

}  // namespace

TEST_CASE("sites of replicas equal a plain loop, whatever the ranks of each replica") {
  for_both_rules([](const auto& rules) {
    for (const std::vector<int>& ranks : {std::vector{4, 4}, {2, 4}, {2, 2}}) {
      CAPTURE(ranks.front());
      const toy::site_settings how{.ranks = ranks, .parts = {4, 4}, .replicas = 2};
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how) ==
            toy::run_plain_sites(toy::odd_spec(), rules, how));
    }
  });
}

TEST_CASE("threads that share out updates and meetings change no bit") {
  for_both_rules([](const auto& rules) {
    toy::site_settings how{.ranks = {1, 2}};
    const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
    how.options.update_threads = 2;
    CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how) == expected);
  });
}

TEST_CASE("parameters in 16 bits with masters in 32 meet as their masters") {
  for_both_rules([](const auto& rules) {
    const auto run = [&](const std::vector<int>& ranks) {
      const toy::site_settings how{.ranks = ranks, .parts = {2, 2}};
      return toy::run_sites(
          toy::odd_spec(), owner_placement{}, rules, how, [](auto&) {},
          precision<bfloat16, float, float, float>{});
    };
    const auto expected = run({1, 1});
    CHECK(run({2, 2}) == expected);
    CHECK(run({1, 2}) == expected);
    CHECK(expected != toy::run_plain_sites(toy::odd_spec(), rules, {}));
  });
}

TEST_CASE("each site clips its own gradient, by the same factor on any number of ranks") {
  for_both_rules([](const auto& rules) {
    const auto run = [&](const std::vector<int>& ranks, double max_norm) {
      const toy::site_settings how{.ranks = ranks, .parts = {3, 3}, .max_norm = max_norm};
      return toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how);
    };
    const auto expected = run({1, 1}, 0.5);
    CHECK(run({3, 3}, 0.5) == expected);
    CHECK(run({1, 3}, 0.5) == expected);
    CHECK(run({1, 1}, 0) != expected);
  });
}

TEST_CASE("after clip a gradient is judged for the whole tensor, however it is cut") {
  for_both_rules([](const auto& rules) {
    toy::site_settings how{.ranks = {1, 1}, .parts = {3, 3}};
    how.max_norm = std::numeric_limits<double>::infinity();
    how.scaled_from = 1100;
    how.scale = [](int site, int step) {
      return site == 1 && step == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    };
    const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
    for (const std::vector<int>& ranks : {std::vector{1, 1}, {3, 3}, {1, 3}}) {
      how.ranks = ranks;
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how) == expected);
    }
  });
}

}  // namespace site_axes_test
