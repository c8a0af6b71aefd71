#include "lordo/optimizer/ldadam.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "lordo/projector/random.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "support/blind_projector.hpp"
#include "support/golden.hpp"
#include "support/lordo_problem.hpp"
#include "support/one_site.hpp"
#include "support/refused.hpp"
#include "support/site_gradients.hpp"
#include "support/trial.hpp"

namespace ldadam_test {

using namespace lordo;
using mfsdp_test::mean_of;
using mfsdp_test::relative_distance;
using mfsdp_test::site_gradients;
using mfsdp_test::sites_equal;
using mfsdp_test::sites_of;

namespace {

constexpr matrix_shape wide{6, 10};
constexpr matrix_shape tall{10, 6};

}  // namespace

static_assert(mfsdp::ExchangesOn<ldadam<>, mfsdp::eigen_backend>);
static_assert(ldadam{.rank = 2}.states(wide)[0] == mfsdp::state_spec{"basis", 12, true});
static_assert(ldadam{.rank = 2}.states(tall)[1] == mfsdp::state_spec{"first_moment", 20, true});
static_assert(ldadam{.rank = 6}.states(tall)[0].elements == 0);
static_assert(ldadam{.rank = 6}.states(tall)[2].elements == 60);

TEST_CASE("ldadam equals the reference over four steps of two sites") {
  const auto file = mfsdp_test::read_golden("lordo_golden.txt");
  const auto& expected = file.at("LDADAM");
  const mfsdp_test::lordo_problem problem(file);
  const ldadam rule{.rank = 2,
                    .learning_rate = 0.125,
                    .beta1 = 0.75,
                    .beta2 = 0.875,
                    .epsilon = 1e-8,
                    .interpolation = 0.75};
  mfsdp_test::plain_sites<double, ldadam<>> sites(rule, problem.shape, 2, problem.start());
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    const std::string at = "t" + std::to_string(t) + "/";
    sites.step(
        {problem.gradient(sites.parameter(0), 0, t), problem.gradient(sites.parameter(1), 1, t)});
    CHECK(sites_equal(sites));
    CHECK(problem.distance(sites.parameter(), expected[at + "theta"]) < 1e-10);
    CHECK(problem.distance(problem.columns(sites.state(0), 2), expected[at + "Q"]) < 1e-10);
    CHECK(problem.distance(sites.state(1), expected[at + "m"]) < 1e-10);
    CHECK(problem.distance(sites.state(2), expected[at + "v"]) < 1e-10);
    CHECK(problem.distance(sites.state(3), expected[at + "E"]) < 1e-10);
  }
  CHECK(sites.exchanged() == 4 * 12);
}

TEST_CASE("ldadam conforms") {
  mfsdp_test::optimizer_conformance(mfsdp_test::on_one_site{ldadam{.rank = 2}});
}

TEST_CASE("ldadam on a tall matrix is ldadam on its transpose") {
  const ldadam rule{.rank = 3, .learning_rate = 0.1, .weight_decay = 0.1};
  const auto flip = [](const std::vector<double>& x) {  // 6 x 10 to 10 x 6
    std::vector<double> y;
    for (std::size_t j = 0; j < 10; ++j) {
      for (std::size_t i = 0; i < 6; ++i) y.push_back(x[i * 10 + j]);
    }
    return y;
  };
  const auto start = mfsdp_test::wavy_matrix<double>(wide);
  mfsdp_test::plain_sites<double, ldadam<>> left(rule, wide, 1, start);
  mfsdp_test::plain_sites<double, ldadam<>> right(rule, tall, 1, flip(start));
  for (int t = 1; t <= 5; ++t) {
    const auto gradient = site_gradients<double>(wide, 1, t)[0];
    left.step({gradient});
    right.step({flip(gradient)});
    CHECK(relative_distance(flip(left.parameter()), right.parameter()) < 1e-10);
    CHECK(relative_distance(flip(left.state(3)), right.state(3)) < 1e-10);
  }
}

TEST_CASE("sites under ldadam are one site on the mean gradient, and equal to the last bit") {
  const ldadam rule{.rank = 2};
  auto sites = sites_of<float>(rule, wide, 3);
  auto one = sites_of<float>(rule, wide, 1);
  for (int t = 1; t <= 5; ++t) {
    const auto gradients = site_gradients<float>(wide, 3, t);
    sites.step(gradients);
    one.step({mean_of(gradients)});
    CHECK(sites_equal(sites));
    const auto expected = one.parameter();
    CHECK(relative_distance(sites.parameter(), {expected.begin(), expected.end()}) < 1e-4);
  }
}

TEST_CASE("without generalised terms, feedback keeps what the subspace missed") {
  // With beta1 = 0 the moments carry nothing over, and A splits into what is used and what is kept.
  const ldadam rule{.rank = 2, .beta1 = 0, .interpolation = 0};
  auto sites = sites_of<double>(rule, wide, 1);
  std::vector<double> kept(60, 0.0);
  for (int t = 1; t <= 4; ++t) {
    const auto gradient = site_gradients<double>(wide, 1, t)[0];
    for (std::size_t i = 0; i < 60; ++i) kept[i] += gradient[i];
    sites.step({gradient});
    // E is orthogonal to the basis, and A - E is its projection, which is the first moment.
    const auto basis = sites.state(0);
    const auto e = sites.state(3);
    const auto inside = mfsdp_test::product(basis, e, 2, 6, 10);
    const auto taken = mfsdp_test::product(basis, kept, 2, 6, 10);
    for (const double x : inside) CHECK(std::abs(x) < 1e-13);
    CHECK(relative_distance(sites.state(1), taken) < 1e-13);
    kept = e;
  }
  ldadam<> without = rule;
  without.feedback = false;
  auto forgetful = sites_of<double>(without, wide, 1);
  const auto gradient = site_gradients<double>(wide, 1, 1)[0];
  forgetful.step({gradient});
  CHECK(forgetful.state(3) == gradient);  // the mean, and nothing of it is carried over
  const auto next = site_gradients<double>(wide, 1, 2)[0];
  forgetful.step({next});
  CHECK(forgetful.state(3) == next);
}

TEST_CASE("ldadam with a rank of a side is Adam, and sends the same") {
  const mfsdp::adamw adam{
      .learning_rate = 1e-3, .beta1 = 0.908, .beta2 = 0.99, .weight_decay = 0.1};
  auto sites = sites_of<double>(ldadam{.rank = 6, .weight_decay = 0.1}, wide, 2);
  mfsdp_test::trial<double, mfsdp::adamw> one(adam, wide, mfsdp_test::wavy_matrix<double>(wide));
  for (int t = 1; t <= 4; ++t) {
    const auto gradients = site_gradients<double>(wide, 2, t);
    sites.step(gradients);
    one.step(mean_of(gradients));
    CHECK(relative_distance(sites.parameter(), one.parameter) < 1e-14);
  }
  CHECK(sites.exchanged() == 4 * 60);
}

TEST_CASE("ldadam takes any projector, and hands no signal to one that needs none") {
  const ldadam<mfsdp_test::blind_projector> rule{.rank = 2};
  auto sites = sites_of<float>(rule, tall, 2);
  std::vector<float> last = sites.state(0);
  for (int t = 1; t <= 3; ++t) {
    sites.step(site_gradients<float>(tall, 2, t));
    CHECK(sites_equal(sites));
    CHECK(sites.state(0) != last);
    last = sites.state(0);
  }
}

TEST_CASE("ldadam refuses options that make no sense, and shows those that matter") {
  auto texts = mfsdp_test::check_adam_options(ldadam{});
  CHECK(mfsdp_test::refused(ldadam{.interpolation = 1.5}, "interpolation is 1.5"));
  texts.insert(ldadam{.interpolation = 0.5}.options());
  texts.insert(ldadam{.feedback = false}.options());
  texts.insert(ldadam<random_projection>{}.options());
  CHECK(texts.size() == 7 + 3);
}

}  // namespace ldadam_test
