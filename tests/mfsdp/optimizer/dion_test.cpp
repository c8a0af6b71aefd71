#include "mfsdp/optimizer/dion.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"

namespace dion_test {

using namespace mfsdp;
using mfsdp_test::one_matrix;
using mfsdp_test::relative_distance;
using mfsdp_test::wavy_matrix;

static_assert(dion{.rank = 2}.states({5, 3})[0] == state_spec{"momentum", 15, false});
static_assert(dion{.rank = 2}.states({5, 3})[1] == state_spec{"basis", 6, true});
static_assert(dion{.rank = 9}.states({5, 3})[1].elements == 9);
static_assert(dion{.rank = 9}.states({3, 5})[1].elements == 15);

namespace {

// The reference keeps its basis by columns.
template <class T>
std::vector<T> transposed(const mfsdp_test::golden_matrix& m) {
  std::vector<T> rows;
  for (index_t j = 0; j < m.shape.cols; ++j) {
    for (index_t i = 0; i < m.shape.rows; ++i) {
      rows.push_back(static_cast<T>(m.values[static_cast<std::size_t>(i * m.shape.cols + j)]));
    }
  }
  return rows;
}

template <class T>
void follow_golden(const std::string& shape_name, double tolerance) {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& c = golden.at("dion_" + shape_name + "_r2");
  const auto& inputs = golden.at("muon_keller_" + shape_name);  // the same for all rules
  const dion rule{.rank = 2};
  CHECK(rule.learning_rate == c.number("lr"));
  CHECK(rule.momentum == c.number("mu"));
  CHECK(rule.weight_decay == c.number("wd"));
  const matrix_shape shape = inputs["W0"].shape;
  one_matrix<T, dion> matrix(rule, shape, inputs["W0"].as<T>());
  matrix.states[1] = transposed<T>(c["Q0"]);
  // The update alone, as minus the step of a parameter of zeros.
  const double scale = std::sqrt(static_cast<double>(shape.rows) / static_cast<double>(shape.cols));
  one_matrix<T, dion> bare(dion{.learning_rate = -1 / scale, .rank = 2}, shape);
  bare.states[1] = matrix.states[1];
  for (const std::string t : {"1", "2", "3"}) {
    matrix.update(inputs["G" + t].as<T>());
    CHECK(relative_distance(matrix.parameter, c["W" + t].values) < tolerance);
    CHECK(relative_distance(matrix.states[0], c["M" + t].values) < tolerance);
    std::ranges::fill(bare.parameter, T(0));
    bare.update(inputs["G" + t].as<T>());
    CHECK(relative_distance(bare.parameter, c["PQt" + t].values) < tolerance);
  }
}

}  // namespace

TEST_CASE("dion equals the reference over three steps") {
  for (const std::string shape : {"5x3", "3x5"}) {
    CAPTURE(shape);
    follow_golden<double>(shape, 1e-11);
    follow_golden<float>(shape, 1e-4);
  }
}

TEST_CASE("dion conforms") {
  mfsdp_test::optimizer_conformance(dion{});
  mfsdp_test::optimizer_conformance(dion{.rank = 2});
}

TEST_CASE("an update has at most the rank asked for, and of no more than a side") {
  const auto values_of = [](index_t rank, matrix_shape shape) {
    one_matrix<double, dion> matrix(dion{.learning_rate = 1, .rank = rank}, shape);
    matrix.update(wavy_matrix<double>(shape));
    return mfsdp_test::singular_values(matrix.parameter, shape);
  };
  for (const matrix_shape shape : {matrix_shape{6, 10}, matrix_shape{10, 6}}) {
    const auto low = values_of(2, shape);
    CHECK(low[3] < 1e-6);
    CHECK(low[4] > 0.1);
    CHECK(values_of(6, shape) == values_of(100, shape));
    CHECK(values_of(6, shape)[0] > 1e-3);
  }
}

TEST_CASE("steps with one gradient turn to its largest singular directions") {
  // A momentum of one takes nothing away, so that each step is one of power iteration.
  const matrix_shape shape{12, 9};
  std::vector<double> gradient(12 * 9, 0.0);
  for (std::size_t i = 0; i < 9; ++i) gradient[9 * i + i] = std::pow(0.5, static_cast<double>(i));
  one_matrix<double, dion> matrix(
      dion{.learning_rate = -std::sqrt(9.0 / 12.0), .momentum = 1, .weight_decay = 0, .rank = 3},
      shape);
  for (int step = 0; step < 30; ++step) {
    matrix.parameter.assign(matrix.parameter.size(), 0.0);
    matrix.update(gradient);
  }
  std::vector<double> expected(12 * 9, 0.0);
  for (std::size_t i = 0; i < 3; ++i) expected[9 * i + i] = 1;
  CHECK(relative_distance(matrix.parameter, expected) < 1e-7);
}

TEST_CASE("a first step takes all of a gradient whose rank is that of the update") {
  for (const index_t rank : {3, 16, 32}) {
    CAPTURE(rank);
    constexpr index_t side = 64;
    const auto a = wavy_matrix<double>({side, rank});
    const auto b = wavy_matrix<double>({rank, side}, 2);
    std::vector<double> gradient(side * side);
    const matrix_view<double> product(gradient.data(), side, side);
    eigen_backend().multiply(1.0, matrix_view(a.data(), side, rank), transpose::no,
                             matrix_view(b.data(), rank, side), transpose::no, 0.0, product,
                             product);
    // A momentum of zero keeps what the step did not take.
    one_matrix<double, dion> matrix(dion{.momentum = 0, .rank = rank}, {side, side});
    matrix.update(gradient);
    CHECK(mfsdp_test::norm(matrix.states[0]) < 1e-10 * mfsdp_test::norm(gradient));
  }
}

TEST_CASE("a first gradient of zeros only decays, and the next starts as if it were the first") {
  const matrix_shape shape{6, 10};
  const auto start = wavy_matrix<float>(shape, 0.5);
  const dion rule{.learning_rate = 0.5, .weight_decay = 0.5, .rank = 4};
  one_matrix late(rule, shape, start);
  late.update(std::vector<float>(60, 0.0f));
  for (std::size_t i = 0; i < 60; ++i) CHECK(late.parameter[i] == 0.75f * start[i]);
  CHECK(late.states[0] == std::vector<float>(60, 0.0f));
  late.parameter = start;
  one_matrix prompt(rule, shape, start);
  late.update(wavy_matrix<float>(shape));
  prompt.update(wavy_matrix<float>(shape));
  CHECK(late.parameter == prompt.parameter);
  CHECK(late.states == prompt.states);
}

TEST_CASE("gradients of lower rank than the update keep it finite") {
  const matrix_shape shape{6, 10};
  one_matrix<float, dion> matrix(dion{.rank = 4}, shape);
  for (int step = 0; step < 5; ++step) {
    matrix.update(std::vector<float>(60, 1.0f));
    CHECK(mfsdp_test::all_finite<float>(matrix.parameter));
    CHECK(mfsdp_test::all_finite<float>(matrix.states[1]));
  }
}

TEST_CASE("every option of dion shows in its text") {
  std::vector<dion> rules(5);
  rules[1].learning_rate = 1;
  rules[2].momentum = 0.5;
  rules[3].weight_decay = 0.5;
  rules[4].rank = 5;
  std::set<std::string> texts;
  for (const dion& rule : rules) texts.insert(rule.options());
  CHECK(texts.size() == rules.size());
}

}  // namespace dion_test
