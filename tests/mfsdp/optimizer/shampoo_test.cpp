#include "mfsdp/optimizer/shampoo.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"
#include "support/trial.hpp"

namespace shampoo_test {

using namespace mfsdp;
using mfsdp_test::golden_gradient, mfsdp_test::golden_weight;
using mfsdp_test::relative_distance, mfsdp_test::trial;

namespace {

const auto& golden() {
  static const auto cases = mfsdp_test::read_golden("optimizer_golden.txt");
  return cases;
}

// Without memory of gradients, so that a step is its direction.
constexpr shampoo plain{.beta1 = 0, .beta2 = 0.95};

template <class T>
void follow_golden(const mfsdp_test::golden_case& c, double tolerance, double root_tolerance) {
  const auto number = [&c](const std::string& key, double otherwise) {
    return c.parameters.contains(key) ? c.number(key) : otherwise;
  };
  shampoo rule{.learning_rate = c.number("lr"),
               .beta1 = c.number("b1"),
               .beta2 = c.number("b2"),
               .epsilon = c.number("eps"),
               .weight_decay = c.number("wd"),
               .frequency = static_cast<index_t>(number("freq", 1)),
               .start = static_cast<index_t>(number("start", 1))};
  if (c.parameters.contains("b3")) rule.beta3 = c.number("b3");
  if (c.parameters.contains("graft")) rule.graft = adam_graft{c.number("gb2"), c.number("geps")};

  const matrix_shape shape = c["W1"].shape;
  trial<T, shampoo> run(rule, shape, golden_weight<T>(shape));
  for (int t = 1; t <= static_cast<int>(number("steps", 3)); ++t) {
    CAPTURE(t);
    run.step(golden_gradient<T>(shape, t));
    CHECK(relative_distance(run.parameter, c["W" + std::to_string(t)].values) < tolerance);
  }
  CHECK(relative_distance(run.state("left_factor"), c["L"].values) < tolerance);
  CHECK(relative_distance(run.state("left_root"), c["invL"].values) < root_tolerance);
  if (shape.cols > 1) {
    CHECK(relative_distance(run.state("right_factor"), c["R"].values) < tolerance);
    CHECK(relative_distance(run.state("right_root"), c["invR"].values) < root_tolerance);
  }
}

}  // namespace

TEST_CASE("shampoo equals Distributed Shampoo in all its forms") {
  for (const std::string name :
       {"ema_nograft_3x5", "ema_nograft_5x3", "ema_mom_wd_4x4", "adagrad_3x5", "bigeps_3x5",
        "adamgraft_3x5", "adamgraft_start3_freq2_4x4", "beta3_4x4"}) {
    CAPTURE(name);
    follow_golden<double>(golden().at("shampoo_" + name), 1e-11, 1e-11);
    follow_golden<float>(golden().at("shampoo_" + name), 1e-4, 1e-4);
  }
  // Three gradients leave a null space in a factor of four: its root is that of the rounding.
  follow_golden<double>(golden().at("shampoo_1d_4"), 1e-11, 1e-9);
  follow_golden<float>(golden().at("shampoo_1d_4"), 1e-4, 1);
}

TEST_CASE("shampoo conforms") {
  mfsdp_test::optimizer_conformance(shampoo{.max_preconditioner_dimension = 64});
  mfsdp_test::optimizer_conformance(shampoo{.beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .weight_decay = 0.1,
                                            .frequency = 2,
                                            .max_preconditioner_dimension = 48,
                                            .graft = adam_graft{}});
}

TEST_CASE("the first step of shampoo is the polar factor of the gradient") {
  for (const std::string name : {"3x5", "5x3", "4x4", "1x5", "5x1", "1x1"}) {
    CAPTURE(name);
    const auto& c = golden().at("ns_" + name);
    shampoo rule = plain;
    rule.learning_rate = -1;
    trial<double, shampoo> run(rule, c["G"].shape, std::vector<double>(c["G"].values.size(), 0.0));
    run.step(c["G"].values);
    CHECK(relative_distance(run.parameter, c["polar_svd"].values) < 1e-8);
  }
}

TEST_CASE("a root of shampoo to the fourth power inverts its factor") {
  constexpr matrix_shape shape{4, 4};
  trial<double, shampoo> run(plain, shape, golden_weight<double>(shape));
  for (int t = 1; t <= 3; ++t) run.step(golden_gradient<double>(shape, t));
  const auto& root = run.state("left_root");
  const auto square = mfsdp_test::product(root, root, 4, 4, 4);
  auto inverse = mfsdp_test::product(square, square, 4, 4, 4);
  for (double& e : inverse) e /= 1 - std::pow(0.95, 3);
  std::vector<double> identity(16, 0.0);
  for (const std::size_t i : {0, 5, 10, 15}) identity[i] = 1;
  CHECK(relative_distance(mfsdp_test::product(inverse, run.state("left_factor"), 4, 4, 4),
                          identity) < 1e-9);
}

TEST_CASE("an exponent given replaces that of the order") {
  constexpr matrix_shape shape{4, 4};
  shampoo rule = plain;
  rule.exponent = 0.5;
  trial<double, shampoo> run(rule, shape, golden_weight<double>(shape));
  run.step(golden_gradient<double>(shape, 1));
  const auto& root = run.state("right_root");
  auto inverse = mfsdp_test::product(root, root, 4, 4, 4);
  for (double& e : inverse) e /= 1 - 0.95;
  std::vector<double> identity(16, 0.0);
  for (const std::size_t i : {0, 5, 10, 15}) identity[i] = 1;
  CHECK(relative_distance(mfsdp_test::product(inverse, run.state("right_factor"), 4, 4, 4),
                          identity) < 1e-9);
}

TEST_CASE_TEMPLATE("shampoo survives deficient and zero factors", T, float, double) {
  const auto& deficient = golden().at("ns_rank2_3x5")["G"];
  for (const double scale : {0.0, 1e-12, 1.0, 1e6}) {
    CAPTURE(scale);
    std::vector<T> g;
    for (const double e : deficient.values) g.push_back(static_cast<T>(scale * e));
    trial<T, shampoo> run(plain, deficient.shape, golden_weight<T>(deficient.shape));
    for (int t = 1; t <= 5; ++t) {
      const std::vector<T> before = run.parameter;
      run.step(g);
      // The norm of an orthogonal factor of rank 2 is sqrt(2), rounding errors may add three to it.
      double norm = 0;
      for (std::size_t i = 0; i < before.size(); ++i)
        norm += std::pow(run.parameter[i] - before[i], 2);
      CHECK(std::sqrt(norm) / plain.learning_rate <= 3);
    }
  }
}

TEST_CASE("zero gradients only decay under shampoo, and the next one works") {
  constexpr matrix_shape shape{3, 5};
  shampoo rule{.learning_rate = 0.5, .beta2 = 0.95, .weight_decay = 0.5, .graft = adam_graft{}};
  trial<double, shampoo> run(rule, shape, std::vector<double>(15, 1.0));
  run.step(std::vector<double>(15, 0.0));
  CHECK(run.parameter == std::vector<double>(15, 0.75));
  run.step(std::vector<double>(15, 0.0));
  CHECK(run.parameter == std::vector<double>(15, 0.5625));
  run.step(golden_gradient<double>(shape, 3));
  CHECK(mfsdp_test::all_finite<double>(run.parameter));
}

TEST_CASE("shampoo takes betas of zero") {
  // Without memory every step is a first one.
  constexpr matrix_shape shape{4, 4};
  const shampoo rule{.beta1 = 0, .beta2 = 0, .graft = adam_graft{.beta2 = 0}};
  trial<double, shampoo> run(rule, shape, golden_weight<double>(shape));
  run.step(golden_gradient<double>(shape, 1));
  run.parameter = golden_weight<double>(shape);
  run.step(golden_gradient<double>(shape, 2));
  trial<double, shampoo> fresh(rule, shape, golden_weight<double>(shape));
  fresh.step(golden_gradient<double>(shape, 2));
  CHECK(relative_distance(run.parameter, fresh.parameter) < 1e-13);
}

TEST_CASE("a row and a column of equal elements move alike under shampoo") {
  trial<double, shampoo> row(shampoo{}, {1, 6}, std::vector<double>(6, 0.0));
  trial<double, shampoo> column(shampoo{}, {6, 1}, std::vector<double>(6, 0.0));
  for (int t = 1; t <= 3; ++t) {
    const auto g = golden_gradient<double>({1, 6}, t);
    row.step(g);
    column.step(g);
  }
  CHECK(relative_distance(row.parameter, column.parameter) < 1e-12);
  CHECK(row.state("left_factor").empty());
  CHECK(row.state("right_factor").size() == 36);
}

TEST_CASE("shampoo never merges dimensions") {
  constexpr auto states = shampoo{}.states({16, 32});
  static_assert(states[0] == state_spec{"left_factor", 16 * 16, true});
  static_assert(states[1] == state_spec{"right_factor", 32 * 32, true});
  static_assert(states[2] == state_spec{"left_root", 16 * 16, true});
  static_assert(states[3] == state_spec{"right_root", 32 * 32, true});
  static_assert(states[4] == state_spec{"filtered_gradient", 16 * 32, false});
  static_assert(states[5] == state_spec{"graft_second_moment", 0, false});
}

TEST_CASE("a matrix above the cap is updated as its blocks would be alone") {
  constexpr matrix_shape shape{6, 7};
  const shampoo rule{.beta2 = 0.95, .max_preconditioner_dimension = 4, .graft = adam_graft{}};
  trial<double, shampoo> whole(rule, shape, golden_weight<double>(shape));
  for (int t = 1; t <= 3; ++t) whole.step(golden_gradient<double>(shape, t));
  CHECK(whole.state("left_factor").size() == 2 * (16 + 4));
  CHECK(whole.state("right_factor").size() == 2 * (16 + 9));

  for (const index_t row : {0, 4}) {
    for (const index_t col : {0, 4}) {
      const matrix_shape block{row == 0 ? 4 : 2, col == 0 ? 4 : 3};
      const auto part = [&](const std::vector<double>& all) {
        std::vector<double> values;
        for (index_t i = row; i < row + block.rows; ++i) {
          for (index_t j = col; j < col + block.cols; ++j) {
            values.push_back(all[static_cast<std::size_t>(i * shape.cols + j)]);
          }
        }
        return values;
      };
      trial<double, shampoo> alone(rule, block, part(golden_weight<double>(shape)));
      for (int t = 1; t <= 3; ++t) alone.step(part(golden_gradient<double>(shape, t)));
      CHECK(relative_distance(alone.parameter, part(whole.parameter)) < 1e-11);
    }
  }
}

TEST_CASE("a decomposition that fails leaves the last root of shampoo") {
  constexpr matrix_shape shape{3, 4};
  bool fails = false;
  mfsdp_test::failing_backend backend;
  backend.fails = &fails;
  trial<double, shampoo, mfsdp_test::failing_backend> run(plain, shape,
                                                          golden_weight<double>(shape), backend);
  run.step(golden_gradient<double>(shape, 1));
  const auto root = run.state("left_root");
  fails = true;
  run.step(golden_gradient<double>(shape, 2));
  CHECK(run.state("left_root") == root);
  CHECK(mfsdp_test::all_finite<double>(run.parameter));
  fails = false;
  run.step(golden_gradient<double>(shape, 3));
  CHECK(run.state("left_root") != root);

  fails = true;
  trial<double, shampoo, mfsdp_test::failing_backend> never(plain, shape,
                                                            golden_weight<double>(shape), backend);
  never.step(golden_gradient<double>(shape, 1));
  CHECK(never.parameter == golden_weight<double>(shape));
}

TEST_CASE("roots count in the cost of shampoo with their share of a step") {
  constexpr matrix_shape shape{256, 512};
  constexpr index_t each = shampoo{}.flops(shape);
  constexpr index_t tenth = shampoo{.frequency = 10}.flops(shape);
  constexpr index_t roots = 27 * (256 * 256 * 256 + index_t{512} * 512 * 512);
  static_assert(each - tenth == roots - roots / 10);
  static_assert(shampoo{.max_preconditioner_dimension = 128}.flops(shape) < each);
  CHECK(shampoo{}.options() != shampoo{.exponent = 0.5}.options());
  CHECK(shampoo{}.options() == shampoo{.beta3 = 0.9, .start = 1}.options());
  CHECK(shampoo{}.options() != shampoo{.graft = adam_graft{}}.options());
}

}  // namespace shampoo_test
