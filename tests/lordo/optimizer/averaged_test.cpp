#include "lordo/optimizer/averaged.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/golden.hpp"
#include "support/one_site.hpp"
#include "support/site_gradients.hpp"
#include "support/trial.hpp"

namespace averaged_test {

using namespace mfsdp;
using lordo::averaged;
using lordo::exchange_low_rank;
using mfsdp_test::mean_of;
using mfsdp_test::on_one_site;
using mfsdp_test::relative_distance;
using mfsdp_test::site_gradients;
using mfsdp_test::sites_of;

namespace {

constexpr matrix_shape shape{6, 10};

}  // namespace

static_assert(averaged<muon>::name == "averaged muon");
static_assert(!averaged<adamw>::whole_matrix && averaged<muon>::whole_matrix);
static_assert(averaged<adamw>::squares_gradient && !averaged<muon>::squares_gradient);
static_assert(averaged<muon>::rounds_before_update == 1);
static_assert(averaged<muon, exchange_low_rank>::rounds_before_update == 2);
static_assert(averaged<adamw, exchange_low_rank>::rounds_before_update == 1);
static_assert(averaged<adamw>{}.states(shape)[2] == state_spec{"mean_gradient", 60, true});
static_assert(
    averaged<muon, exchange_low_rank>{.exchange = {.rank = 2}}.states(shape)[1].elements == 0);
static_assert(ExchangesOn<averaged<adamw>, eigen_backend>);

TEST_CASE("averaged rules conform") {
  mfsdp_test::optimizer_conformance(on_one_site{averaged{.inner = adamw{}}});
  mfsdp_test::optimizer_conformance(
      on_one_site{averaged{.inner = muon{}, .exchange = exchange_low_rank{.rank = 2}}});
}

TEST_CASE("sites with averaged gradients are one site on the mean gradient, bit for bit") {
  const auto same = [](const auto& inner) {
    auto sites = sites_of<float>(averaged{.inner = inner}, shape, 3);
    mfsdp_test::trial<float, std::remove_cvref_t<decltype(inner)>> one(
        inner, shape, mfsdp_test::wavy_matrix<float>(shape));
    for (int t = 1; t <= 4; ++t) {
      const auto gradients = site_gradients<float>(shape, 3, t);
      sites.step(gradients);
      one.step(mean_of(gradients));
      CHECK(mfsdp_test::sites_equal(sites));
      CHECK(sites.parameter() == one.parameter);
    }
    CHECK(sites.exchanged() == 4 * 60);
  };
  same(adamw{});
  same(muon{});
}

TEST_CASE("gradients averaged by factors cost r (rows + cols) numbers a step") {
  auto sites = sites_of<float>(averaged{.inner = muon{}, .exchange = exchange_low_rank{.rank = 2}},
                               shape, 3);
  for (int t = 1; t <= 4; ++t) {
    sites.step(site_gradients<float>(shape, 3, t));
    CHECK(mfsdp_test::parameters_equal(sites));
    CHECK(sites.state(0, 0) == sites.state(0, 2));  // the momentum
  }
  CHECK(sites.exchanged() == 4 * 2 * (6 + 10));
}

TEST_CASE("averaged rules refuse what their parts refuse, and show their options") {
  CHECK_THROWS_WITH_AS((averaged{.inner = muon{.momentum = 1}}.check()),
                       "muon: momentum is 1, not from 0 up to 1", spec_error);
  CHECK_THROWS_AS((averaged{.inner = muon{}, .exchange = exchange_low_rank{}}.check()), spec_error);
  const std::set<std::string> texts{
      averaged{.inner = adamw{}}.options(), averaged{.inner = adamw{.beta1 = 0.5}}.options(),
      averaged{.inner = adamw{}, .exchange = exchange_low_rank{.rank = 1}}.options(),
      averaged{.inner = adamw{}, .exchange = exchange_low_rank{.rank = 2}}.options()};
  CHECK(texts.size() == 4);
}

}  // namespace averaged_test
