#include "mfsdp/optimizer/soap.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"
#include "support/trial.hpp"

namespace soap_test {

using namespace mfsdp;
using mfsdp_test::relative_distance, mfsdp_test::trial;

namespace {

const auto& golden() {
  static const auto cases = mfsdp_test::read_golden("optimizer_golden.txt");
  return cases;
}

// Each step follows the eigenvectors of a factor, whose rounding errors differ with the build; in
// float a gap of eigenvalues of 1e-3 leaves 1e-4 of them.
template <class T>
constexpr double tolerance = std::is_same_v<T, double> ? 1e-11 : 1e-3;

template <class T>
void follow_reference(const mfsdp_test::golden_case& c) {
  soap rule{.learning_rate = c.number("lr"),
            .beta1 = c.number("b1"),
            .beta2 = c.number("b2"),
            .epsilon = c.number("eps"),
            .weight_decay = c.number("wd"),
            .frequency = static_cast<index_t>(c.number("freq"))};
  if (c.parameters.contains("max_dim")) {
    rule.max_preconditioner_dimension = static_cast<index_t>(c.number("max_dim"));
  }
  const matrix_shape shape = c["W1"].shape;
  trial<T, soap> run(rule, shape, c["W1"].as<T>());
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    run.step(mfsdp_test::golden_gradient<T>(shape, t));
    CHECK(relative_distance(run.parameter, c["W" + std::to_string(t)].values) < tolerance<T>);
  }
  CHECK(relative_distance(run.state("left_factor"), c["L"].values) < tolerance<T>);
  if (shape.cols <= rule.max_preconditioner_dimension) {
    CHECK(relative_distance(run.state("right_factor"), c["R"].values) < tolerance<T>);
  }
  CHECK(relative_distance(run.state("first_moment"), c["m_original_basis"].values) < tolerance<T>);
}

template <class T>
void follow_eigenvalue_corrected(const mfsdp_test::golden_case& c) {
  soap rule = soap::eigenvalue_corrected();
  rule.learning_rate = c.number("lr");
  rule.beta1 = c.number("b1");
  rule.beta2 = c.number("b2");
  rule.epsilon = c.number("eps");
  rule.frequency = static_cast<index_t>(c.number("freq"));
  trial<T, soap> run(rule, {4, 4}, std::vector<T>(16, T(0)));
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    run.parameter.assign(16, T(0));
    run.step(mfsdp_test::golden_gradient<T>({4, 4}, t));
    if (t == 1 && rule.frequency == 1) continue;  // rounding errors in the source
    for (T& e : run.parameter) e /= static_cast<T>(-rule.learning_rate);
    CHECK(relative_distance(run.parameter, c["P" + std::to_string(t)].values) < tolerance<T>);
  }
  CHECK(relative_distance(run.state("second_moment"), c["E4"].values) < tolerance<T>);
}

template <class T>
void follow_current_gradient(const mfsdp_test::golden_case& c) {
  soap rule = soap::current_gradient();
  rule.learning_rate = c.number("lr");
  rule.beta1 = c.number("b1");
  rule.beta2 = c.number("b2");
  rule.factor_beta = c.number("shampoo_beta");
  rule.epsilon = c.number("eps");
  rule.weight_decay = c.number("wd");
  trial<T, soap> run(rule, {4, 4}, std::vector<T>(16, T(0)));
  for (int t = 1; t <= 4; ++t) {
    CAPTURE(t);
    const std::string number = std::to_string(t);
    const auto g = mfsdp_test::golden_gradient<T>({4, 4}, t);
    run.step(g);
    const auto unbiased = [&](std::vector<T> factor) {
      for (T& e : factor) e /= static_cast<T>(1 - std::pow(*rule.factor_beta, t));
      return factor;
    };
    CHECK(relative_distance(unbiased(run.state("left_factor")), c["L" + number].values) <
          tolerance<T>);
    CHECK(relative_distance(unbiased(run.state("right_factor")), c["R" + number].values) <
          tolerance<T>);
    const std::vector<T>& right = run.state("right_basis");
    const auto turned =
        mfsdp_test::product(mfsdp_test::product(run.state("left_basis"), g, 4, 4, 4),
                            std::vector<double>(right.begin(), right.end()), 4, 4, 4, true);
    std::vector<double> sizes;
    for (const double e : turned) sizes.push_back(std::abs(e));
    CHECK(relative_distance(sizes, c["absGproj" + number].values) < tolerance<T>);
  }
}

double distance_from_orthonormal(const auto& basis, std::size_t n) {
  auto gram = mfsdp_test::product(basis, basis, n, n, n, true);
  std::vector<double> identity(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) identity[i * n + i] = 1;
  return relative_distance(gram, identity);
}

constexpr std::array<soap, 3> forms{soap{.frequency = 2}, soap::eigenvalue_corrected(),
                                    soap::current_gradient()};

}  // namespace

TEST_CASE("soap equals its reference, two-sided and one-sided") {
  for (const std::string name : {"f1_4x4", "f10_4x4", "f2_3x4", "f2_4x3", "onesided_3x5"}) {
    CAPTURE(name);
    follow_reference<double>(golden().at("soap_ref_" + name));
    follow_reference<float>(golden().at("soap_ref_" + name));
  }
}

TEST_CASE("soap equals eigenvalue-corrected Shampoo after its first step") {
  for (const std::string name : {"f1", "f2"}) {
    CAPTURE(name);
    follow_eigenvalue_corrected<double>(golden().at("soap_meta_evc_4x4_" + name));
    follow_eigenvalue_corrected<float>(golden().at("soap_meta_evc_4x4_" + name));
  }
}

TEST_CASE("the current gradient's factors and projections equal Emerging-Optimizers'") {
  follow_current_gradient<double>(golden().at("soap_nvidia_4x4"));
  follow_current_gradient<float>(golden().at("soap_nvidia_4x4"));
}

TEST_CASE("soap conforms") {
  for (soap rule : forms) {
    rule.max_preconditioner_dimension = 128;
    mfsdp_test::optimizer_conformance(rule);
  }
  mfsdp_test::optimizer_conformance(
      soap{.beta1 = 0, .beta2 = 0, .frequency = 1, .max_preconditioner_dimension = 32});
}

TEST_CASE("the first gradient of soap makes the bases and moves nothing") {
  for (const soap& rule : {soap{}, soap::current_gradient()}) {
    trial<float, soap> run(rule, {4, 3}, std::vector<float>(12, 1.0f));
    run.step(mfsdp_test::golden_gradient<float>({4, 3}, 1));
    CHECK(run.parameter == std::vector<float>(12, 1.0f));
    CHECK(run.state("second_moment") == std::vector<float>(12, 0.0f));
    CHECK(distance_from_orthonormal(run.state("left_basis"), 4) < 1e-5);
  }
}

TEST_CASE("the first step of eigenvalue-corrected Shampoo is Adam's") {
  // Sure of its sign, where the eigenbasis of one gradient would divide rounding errors.
  soap rule = soap::eigenvalue_corrected();
  rule.learning_rate = 0.5;
  const auto g = mfsdp_test::golden_gradient<float>({4, 4}, 1);
  for (const index_t frequency : {1, 2}) {
    rule.frequency = frequency;
    trial<float, soap> run(rule, {4, 4}, std::vector<float>(16, 0.0f));
    run.step(g);
    for (std::size_t i = 0; i < g.size(); ++i) {
      CHECK(run.parameter[i] == doctest::Approx(g[i] > 0 ? -0.5 : 0.5).epsilon(1e-6));
    }
  }
}

TEST_CASE("the second moment of soap is reordered with the basis") {
  // Diagonal gradients whose order of size changes: the basis is that of the axes throughout.
  soap rule{.beta1 = 0.9, .beta2 = 0.75, .frequency = 1};
  trial<double, soap> run(rule, {2, 2}, std::vector<double>(4, 0.0));
  run.step({2, 0, 0, 1});
  run.step({0.5, 0, 0, 8});
  const auto sizes = [](std::vector<double> x) {
    for (double& e : x) e = std::abs(e);
    return x;
  };
  CHECK(sizes(run.state("left_basis")) == std::vector<double>{0, 1, 1, 0});
  CHECK(sizes(run.state("right_basis")) == std::vector<double>{0, 1, 1, 0});
  CHECK(relative_distance(run.state("second_moment"), {16, 0, 0, 0.0625}) < 1e-14);

  // The next step meets them where they are: moments and their directions still fit.
  const std::vector<double> before = run.parameter;
  run.step({0.5, 0, 0, 8});
  const double m = 0.9 * 0.1 + 0.1;
  const double v = 0.75 * 0.25 + 0.25;
  const double step = 3e-3 * std::sqrt(1 - 0.75 * 0.75) / (1 - 0.81) * m / std::sqrt(v);
  CHECK(run.parameter[3] == doctest::Approx((before[3] - step) * (1 - 3e-5)).epsilon(1e-6));
  CHECK(run.parameter[0] == doctest::Approx((before[0] - step) * (1 - 3e-5)).epsilon(1e-6));
}

TEST_CASE("the second moment of the current-gradient form stays where it is") {
  // The order of the axes changes before the second step and before the third.
  soap rule = soap::current_gradient();
  rule.beta2 = 0.75;
  trial<double, soap> run(rule, {2, 2}, std::vector<double>(4, 0.0));
  run.step({2, 0, 0, 1});
  run.step({0.5, 0, 0, 8});
  CHECK(relative_distance(run.state("second_moment"), {16, 0, 0, 0.0625}) < 1e-14);
  run.step({100, 0, 0, 0.5});
  CHECK(relative_distance(run.state("second_moment"), {2512, 0, 0, 0.109375}) < 1e-14);
}

TEST_CASE_TEMPLATE("soap survives zero and deficient gradients at every scale", T, float, double) {
  const auto& deficient = golden().at("ns_rank2_3x5")["G"];
  for (const soap& rule : forms) {
    CAPTURE(static_cast<int>(rule.form));
    for (const double scale : {0.0, 1e-15, 1e-6, 1.0, 1e12}) {
      CAPTURE(scale);
      trial<T, soap> run(rule, {3, 5}, std::vector<T>(15, T(1)));
      for (int t = 1; t <= 5; ++t) {
        // The first gradients are zero.
        std::vector<T> g;
        for (const double e : deficient.values) g.push_back(static_cast<T>(t < 3 ? 0 : scale * e));
        run.step(g);
        CHECK(mfsdp_test::all_finite<T>(run.parameter));
        CHECK(distance_from_orthonormal(run.state("left_basis"), 3) < 1e-5);
        CHECK(distance_from_orthonormal(run.state("right_basis"), 5) < 1e-5);
      }
    }
  }
}

TEST_CASE("zero gradients only decay under soap") {
  for (soap rule : forms) {
    rule.learning_rate = 0.5;
    rule.weight_decay = 0.5;
    trial<double, soap> run(rule, {3, 5}, std::vector<double>(15, 1.0));
    for (int t = 1; t <= 3; ++t) run.step(std::vector<double>(15, 0.0));
    const bool first_counts = rule.form == soap_form::eigenvalue_corrected;
    CHECK(run.parameter == std::vector<double>(15, first_counts ? 0.421875 : 0.5625));
  }
}

TEST_CASE("a decomposition that fails leaves the last basis of soap") {
  bool fails = false;
  mfsdp_test::failing_backend backend;
  backend.fails = &fails;
  trial<double, soap, mfsdp_test::failing_backend> run(soap::eigenvalue_corrected(), {3, 4},
                                                       std::vector<double>(12, 1.0), backend);
  run.step(mfsdp_test::golden_gradient<double>({3, 4}, 1));
  const auto basis = run.state("left_basis");
  fails = true;
  run.step(mfsdp_test::golden_gradient<double>({3, 4}, 2));
  CHECK(run.state("left_basis") == basis);
  CHECK(mfsdp_test::all_finite<double>(run.parameter));
}

TEST_CASE("memory and cost of soap") {
  const auto per_weight = [](const soap& rule, matrix_shape shape) {
    index_t elements = 0;
    for (const state_spec& state : rule.states(shape)) elements += state.elements;
    return static_cast<double>(elements) / static_cast<double>(shape.elements());
  };
  CHECK(per_weight(soap{}, {768, 768}) == 6);
  CHECK(per_weight(soap{}, {768, 3072}) == 10.5);
  CHECK(per_weight(soap{.max_preconditioner_dimension = 768}, {768, 3072}) == 2.5);
  CHECK(per_weight(soap{.max_preconditioner_dimension = 767}, {768, 3072}) == 2);
  constexpr auto states = soap{}.states({16, 32});
  static_assert(states[0] == state_spec{"left_factor", 16 * 16, true});
  static_assert(states[3] == state_spec{"right_basis", 32 * 32, true});
  static_assert(states[4] == state_spec{"first_moment", 16 * 32, false});

  static_assert(soap{.frequency = 1}.flops({64, 64}) ==
                (8 * 128 + 20) * 64 * 64 + 12 * 64 * 64 * 64);
  static_assert(soap::eigenvalue_corrected().flops({64, 64}) ==
                (8 * 128 + 20) * 64 * 64 + 50 * 64 * 64 * 64);
  CHECK(soap{}.options() != soap{.form = soap_form::current_gradient}.options());
  CHECK(soap{}.options() == soap{.factor_beta = 0.95}.options());
}

}  // namespace soap_test
