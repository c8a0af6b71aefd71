#include "mfsdp/optimizer/muon.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"

using namespace mfsdp;
using mfsdp_test::relative_distance;

namespace {

template <class T>
void step(const muon& rule, matrix_shape shape, std::vector<T>& parameter,
          const std::vector<T>& gradient, std::vector<T>& momentum) {
  eigen_backend backend;
  auto workspace = backend.allocate<T>(rule.workspace_size(shape));
  rule.update(backend, {std::span(momentum)}, matrix_view<T>(parameter.data(), shape),
              matrix_view<const T>(gradient.data(), shape),
              update_context<T>{1, T(1), workspace.span()});
}

template <class T>
void follow_golden(const mfsdp_test::golden_case& c, double tolerance) {
  const muon rule{
      .learning_rate = c.number("lr"), .momentum = c.number("mu"), .weight_decay = c.number("wd")};
  const matrix_shape shape = c["W0"].shape;
  auto parameter = c["W0"].as<T>();
  std::vector<T> momentum(parameter.size(), T(0));
  for (const std::string t : {"1", "2", "3"}) {
    step(rule, shape, parameter, c["G" + t].as<T>(), momentum);
    CHECK(relative_distance(parameter, c["W" + t].values) < tolerance);
  }
  CHECK(relative_distance(momentum, c["M3"].values) < tolerance);
}

}  // namespace

TEST_CASE("muon equals Keller Jordan's over three steps") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  for (const std::string name : {"keller_3x5", "keller_5x3", "keller_wd_3x5", "keller_wd_5x3"}) {
    CAPTURE(name);
    follow_golden<double>(golden.at("muon_" + name), 1e-11);
    follow_golden<float>(golden.at("muon_" + name), 1e-5);
  }
}

TEST_CASE("muon with a zero gradient only decays") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& c = golden.at("muon_keller_wd_zero_grad_3x5");
  auto parameter = golden.at("muon_keller_3x5")["W0"].values;
  const std::vector<double> zero(parameter.size(), 0.0);
  auto momentum = zero;
  const muon rule{.learning_rate = c.number("lr"), .weight_decay = c.number("wd")};
  for (const std::string t : {"1", "2", "3"}) {
    step(rule, {3, 5}, parameter, zero, momentum);
    CHECK(relative_distance(parameter, c["W" + t].values) < 1e-15);
  }
  CHECK(momentum == zero);

  momentum.assign(momentum.size(), 2.0);
  step(rule, {3, 5}, parameter, zero, momentum);
  CHECK(std::ranges::all_of(momentum, [](double m) { return m == 0.95 * 2.0; }));
}

TEST_CASE("muon conforms") {
  mfsdp_test::optimizer_conformance(muon{});
  mfsdp_test::optimizer_conformance(muon{.weight_decay = 0.1, .steps = 2});
}

TEST_CASE("the step of muon does not depend on the size of the gradient") {
  for (const float scale : {1e-2f, 1.0f, 1e10f, 1e30f}) {
    CAPTURE(scale);
    std::vector<float> parameter(8 * 4096, 0.0f), momentum(8 * 4096, 0.0f), gradient;
    for (int i = 0; i < 8 * 4096; ++i) {
      gradient.push_back(scale * static_cast<float>(std::sin(0.8 + 2.3 * i)));
    }
    step(muon{}, {8, 4096}, parameter, gradient, momentum);
    const double norm = std::sqrt(eigen_backend().sum_of_squares(std::span(parameter)));
    // Rank two (a sine of a linear index), so about sqrt(2) learning rates long.
    CHECK(norm > 0.02 * 0.9);
    CHECK(norm < 0.02 * 2.0);
  }
}

TEST_CASE("the step of muon is longer for tall matrices, by the root of rows over columns") {
  const auto moved = [](matrix_shape shape) {
    const auto size = static_cast<std::size_t>(shape.elements());
    std::vector<double> parameter(size, 0.0), momentum(size, 0.0), gradient(size, 1.0);
    step(muon{}, shape, parameter, gradient, momentum);
    return std::sqrt(eigen_backend().sum_of_squares(std::span(parameter)));
  };
  CHECK(moved({9, 1}) / moved({1, 9}) == doctest::Approx(3.0));
  CHECK(moved({1, 9}) / moved({1, 1}) == doctest::Approx(1.0).epsilon(1e-5));
}
