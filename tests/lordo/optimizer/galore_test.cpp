#include "lordo/optimizer/galore.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "lordo/projector/power_step.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "support/blind_projector.hpp"
#include "support/golden.hpp"
#include "support/lordo_problem.hpp"
#include "support/one_site.hpp"
#include "support/refused.hpp"
#include "support/site_gradients.hpp"
#include "support/trial.hpp"

namespace galore_test {

using namespace lordo;
using mfsdp_test::mean_of;
using mfsdp_test::relative_distance;
using mfsdp_test::site_gradients;
using mfsdp_test::sites_of;

namespace {

constexpr matrix_shape wide{6, 10};
constexpr matrix_shape tall{10, 6};
// In the order of the states.
enum : std::size_t { basis, first, second, projected, mean };

}  // namespace

static_assert(mfsdp::ExchangesOn<galore<>, mfsdp::eigen_backend>);
static_assert(galore{.rank = 2}.states(wide)[0] == mfsdp::state_spec{"basis", 12, true});
static_assert(galore{.rank = 2}.states(tall)[3] ==
              mfsdp::state_spec{"projected_gradient", 20, true});
static_assert(galore{.rank = 6}.states(tall)[0].elements == 0);
static_assert(galore{.rank = 6}.states(tall)[1].elements == 60);

TEST_CASE("galore equals the reference over four steps of two sites") {
  const auto file = mfsdp_test::read_golden("lordo_golden.txt");
  const auto& expected = file.at("GALORE");
  const mfsdp_test::lordo_problem problem(file);
  const galore rule{.rank = 2,
                    .learning_rate = 0.125,
                    .beta1 = 0.75,
                    .beta2 = 0.875,
                    .epsilon = 1e-6,
                    .scale = 0.25,
                    .refresh = 2};
  mfsdp_test::plain_sites<double, galore<>> sites(rule, problem.shape, 2, problem.start());
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    const std::string at = "t" + std::to_string(t) + "/";
    const std::int64_t sent = sites.exchanged();
    sites.step(
        {problem.gradient(sites.parameter(0), 0, t), problem.gradient(sites.parameter(1), 1, t)});
    CHECK(sites.exchanged() - sent == (t % 2 == 1 ? 3 * 4 : 2 * 4));
    CHECK(sites.parameter(0) == sites.parameter(1));
    CHECK(sites.state(basis, 0) == sites.state(basis, 1));
    CHECK(problem.distance(sites.parameter(), expected[at + "theta"]) < 1e-10);
    CHECK(problem.distance(problem.columns(sites.state(basis), 2), expected[at + "Q"]) < 1e-10);
    CHECK(problem.distance(sites.state(first), expected[at + "m"]) < 1e-10);
    CHECK(problem.distance(sites.state(second), expected[at + "v"]) < 1e-10);
    CHECK(problem.distance(sites.state(projected), expected[at + "low"]) < 1e-10);
    if (t % 2 == 1) CHECK(problem.distance(sites.state(mean), expected[at + "g"]) < 1e-10);
  }
}

TEST_CASE("galore conforms") {
  mfsdp_test::optimizer_conformance(mfsdp_test::on_one_site{galore{.rank = 2, .refresh = 2}});
}

TEST_CASE("between refreshes the basis stays, and the mean of projections is that of the mean") {
  const galore rule{.rank = 3, .weight_decay = 0.1, .refresh = 3};
  for (const matrix_shape shape : {wide, tall}) {
    auto sites = sites_of<double>(rule, shape, 3);
    auto one = sites_of<double>(rule, shape, 1);
    std::vector<double> last;
    for (int t = 1; t <= 7; ++t) {
      CAPTURE(t);
      const auto gradients = site_gradients<double>(shape, 3, t);
      sites.step(gradients);
      one.step({mean_of(gradients)});
      CHECK((sites.state(basis) != last) == (t % 3 == 1));
      CHECK(sites.state(basis, 2) == sites.state(basis, 0));
      CHECK(sites.parameter(2) == sites.parameter(0));
      CHECK(relative_distance(sites.parameter(), one.parameter()) < 1e-12);
      last = sites.state(basis);
    }
    CHECK(sites.exchanged() == 3 * 60 + 4 * 3 * 10);
  }
}

TEST_CASE("a site without a usable gradient steps with the others") {
  auto sites = sites_of<float>(galore{.rank = 2, .refresh = 2}, wide, 2);
  for (int t = 1; t <= 2; ++t) sites.step(site_gradients<float>(wide, 2, t));
  auto gradients = site_gradients<float>(wide, 2, 3);
  gradients[1].clear();
  const auto before = sites.state(basis);
  sites.step(gradients);
  CHECK(sites.state(basis, 0) != before);
  CHECK(sites.state(basis, 1) == sites.state(basis, 0));
  CHECK(sites.parameter(1) == sites.parameter(0));
}

TEST_CASE("weights decay after the step") {
  const galore plain{.rank = 2, .learning_rate = 0.5};
  galore<> decaying = plain;
  decaying.weight_decay = 0.5;
  const auto gradient = site_gradients<float>(wide, 1, 1);
  auto a = sites_of<float>(plain, wide, 1);
  auto b = sites_of<float>(decaying, wide, 1);
  a.step(gradient);
  b.step(gradient);
  for (std::size_t i = 0; i < 60; ++i) CHECK(b.parameter()[i] == 0.75f * a.parameter()[i]);
}

TEST_CASE("galore with a rank of a side is Adam of full size at the scaled rate") {
  // At an epsilon of nothing its place makes no difference.
  const galore rule{.rank = 7, .learning_rate = 0.1, .epsilon = 1e-300};
  const mfsdp::adamw adam{.learning_rate = 0.025, .epsilon = 1e-300, .weight_decay = 0};
  auto sites = sites_of<double>(rule, wide, 2);
  mfsdp_test::trial<double, mfsdp::adamw> one(adam, wide, mfsdp_test::wavy_matrix<double>(wide));
  for (int t = 1; t <= 4; ++t) {
    const auto gradients = site_gradients<double>(wide, 2, t);
    sites.step(gradients);
    one.step(mean_of(gradients));
    CHECK(relative_distance(sites.parameter(), one.parameter) < 1e-13);
  }
  CHECK(sites.exchanged() == 4 * 60);
}

TEST_CASE("galore takes any projector after a first basis of singular vectors") {
  auto sites = sites_of<double>(galore<power_step>{.rank = 2, .refresh = 1}, wide, 1);
  auto plain = sites_of<double>(galore{.rank = 2, .refresh = 1}, wide, 1);
  sites.step(site_gradients<double>(wide, 1, 1));
  plain.step(site_gradients<double>(wide, 1, 1));
  CHECK(sites.state(basis) == plain.state(basis));
  sites.step(site_gradients<double>(wide, 1, 2));
  plain.step(site_gradients<double>(wide, 1, 2));
  CHECK(sites.state(basis) != plain.state(basis));
}

TEST_CASE("a projector that needs no signal gets none") {
  const galore<mfsdp_test::blind_projector> rule{.rank = 2, .refresh = 2};
  auto sites = sites_of<double>(rule, wide, 2);
  auto one = sites_of<double>(rule, wide, 1);
  std::vector<double> last = sites.state(basis);
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    auto gradients = site_gradients<double>(wide, 2, t);
    one.step({t == 3 ? gradients[0] : mean_of(gradients)});
    if (t == 3) gradients[1].clear();  // a site that draws its basis without contributing
    sites.step(gradients);
    CHECK((sites.state(basis) != last) == (t % 2 == 1));
    CHECK(mfsdp_test::sites_equal(sites));
    CHECK(sites.state(basis) == one.state(basis));
    CHECK(relative_distance(sites.parameter(), one.parameter()) < 1e-12);
    last = sites.state(basis);
  }
  // No gradient is sent at a refresh, nor kept.
  CHECK(sites.exchanged() == 4 * 2 * 10);
  CHECK(rule.states(wide)[mean].elements == 0);
  CHECK(rule.exchanges(wide, {.step = 1}) ==
        std::array<bool, 6>{false, false, false, false, true, false});
}

TEST_CASE("galore refuses options that make no sense, and shows those that matter") {
  auto texts = mfsdp_test::check_adam_options(galore{.rank = 2});
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = mfsdp_test::refused<galore<>>;
  CHECK(refused({}, "galore: rank is 0"));
  CHECK(refused({.rank = 1, .refresh = 0}, "refresh is 0"));
  CHECK(refused({.rank = 1, .scale = -1}, "scale is -1"));
  CHECK(refused({.rank = 1, .scale = nan}, "scale is nan"));
  CHECK(galore{.rank = 2, .refresh = 0}.flops(wide) > 0);

  texts.insert(galore{.rank = 2, .scale = 0.5}.options());
  texts.insert(galore{.rank = 2, .refresh = 5}.options());
  texts.insert(galore<power_step>{.rank = 2}.options());
  CHECK(texts.size() == 7 + 3);
}

}  // namespace galore_test
