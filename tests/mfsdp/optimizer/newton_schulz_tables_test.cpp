#include "mfsdp/optimizer/newton_schulz_tables.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"

namespace newton_schulz_tables_test {

using namespace mfsdp;
using mfsdp_test::relative_distance;

static_assert(with_safety(polar_express_coefficients, 2, 1)[0].a ==
              polar_express_coefficients[0].a / 2);
static_assert(with_safety(polar_express_coefficients, 2, 1)[0].b ==
              polar_express_coefficients[0].b / 8);
static_assert(with_safety(polar_express_coefficients, 2, 1)[0].c ==
              polar_express_coefficients[0].c / 32);
static_assert(with_safety(polar_express_coefficients, 2, 1)[1].a ==
              polar_express_coefficients[1].a);

namespace {

template <class T>
std::vector<T> orthogonalised(std::vector<T> x, matrix_shape shape,
                              const newton_schulz_options& options) {
  std::vector<T> workspace(static_cast<std::size_t>(newton_schulz_workspace(shape)));
  eigen_backend backend;
  newton_schulz(backend, matrix_view<T>(x.data(), shape), options, std::span(workspace));
  return x;
}

struct column {
  std::string name;
  newton_schulz_options options;
};

const std::vector<column> columns{
    {"keller5_add1e-7", {}},
    {"keller5_clamp1e-7", {.rule = epsilon_rule::clamp}},
    {"you5_add1e-7", {.coefficients = you_coefficients}},
    {"pe5_dion_1.02_1e-6",
     {.coefficients = polar_express_safe_coefficients, .safety = 1.02, .epsilon = 1e-6}},
    {"pe5_nanochat_1.01_1e-6",
     {.coefficients = polar_express_safe_coefficients, .safety = 1.01, .epsilon = 1e-6}},
    {"cans5_add1e-7", {.coefficients = cans_coefficients}}};

}  // namespace

TEST_CASE("every table equals the reference in double and follows it in float") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  int compared = 0;
  for (const std::string name : {"3x5", "5x3", "4x4", "1x5", "5x1", "1x1", "rank2_3x5"}) {
    const auto& c = golden.at("ns_" + name);
    const auto& input = c["G"];
    for (const auto& [column, options] : columns) {
      if (!c.matrices.contains(column)) continue;
      CAPTURE(name);
      CAPTURE(column);
      const auto& expected = c[column].values;
      // Without a safety CANS is steep at one, where the singular value of a rank-one input is.
      const bool steep =
          column == "cans5_add1e-7" && std::min(input.shape.rows, input.shape.cols) == 1;
      CHECK(relative_distance(orthogonalised(input.values, input.shape, options), expected) <
            (steep ? 1e-10 : 1e-11));
      // What float leaves below the rank is lifted by up to a thousand.
      const double deficient = name.starts_with("rank2") ? 1e-3 : 1e-4;
      CHECK(relative_distance(orthogonalised(input.as<float>(), input.shape, options), expected) <
            (steep ? 1e-2 : deficient));
      ++compared;
    }
  }
  CHECK(compared == 6 * 6 + 2);
}

TEST_CASE("a zero matrix stays zero with every table") {
  const std::vector<double> zero(15, 0.0);
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  for (const auto& [column, options] : columns) {
    CAPTURE(column);
    CHECK(orthogonalised(zero, {3, 5}, options) == zero);
    if (golden.at("ns_zero_3x5").matrices.contains(column)) {
      CHECK(golden.at("ns_zero_3x5")[column].values == zero);
    }
  }
}

TEST_CASE("an epsilon that is a lower bound equals the reference at any size of the input") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& input = golden.at("ns_3x5")["G"];
  for (const std::string scale : {"1e-30", "1e-12", "1e-08", "1e-07", "1e-04", "1e+30"}) {
    CAPTURE(scale);
    const auto& c = golden.at("ns_scaled_" + scale + "_3x5");
    auto scaled = input.values;
    for (double& x : scaled) x *= c.number("scale");
    CHECK(relative_distance(orthogonalised(scaled, input.shape, {.rule = epsilon_rule::clamp}),
                            c["keller5_clamp1e-7"].values) < 1e-11);
  }
}

TEST_CASE("every table maps singular values by its polynomials") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& c = golden.at("ns_scalar_response");
  const std::vector<column> responses{
      {"y_keller5", {}},
      {"y_you5", {.coefficients = you_coefficients}},
      {"y_pe5_dion", {.coefficients = polar_express_safe_coefficients}},
      {"y_cans5", {.coefficients = cans_coefficients}},
      {"y_pe5_paper_s1.05", {.coefficients = gram_coefficients}},
      {"y_pe8_paper", {.coefficients = polar_express_coefficients, .steps = 8}}};
  for (const auto& [name, given] : responses) {
    CAPTURE(name);
    newton_schulz_options options = given;
    options.epsilon = 1e-300;
    std::vector<double> got;
    for (const double x : c["x"].values) {
      // A diagonal of unit norm: the diagonal of the result is the scalar response.
      got.push_back(orthogonalised<double>({x, 0, 0, std::sqrt(1 - x * x)}, {2, 2}, options)[0]);
    }
    CHECK(relative_distance(got, c[name].values) < 1e-11);
  }
}

TEST_CASE("fewer steps than rows use the first rows") {
  const auto three = orthogonalised<double>(
      {4}, {1, 1}, {.coefficients = polar_express_coefficients, .steps = 3, .epsilon = 1e-300});
  double x = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto [a, b, c] = polar_express_coefficients[i];
    x = a * x + b * std::pow(x, 3) + c * std::pow(x, 5);
  }
  CHECK(three[0] == doctest::Approx(x).epsilon(1e-12));
}

TEST_CASE("singular values land in the band of each table, narrower for those after Keller's") {
  constexpr matrix_shape shape{24, 60};
  const auto input = mfsdp_test::wavy_matrix<double>(shape);
  const double largest = mfsdp_test::singular_values(input, shape).back();
  const double smallest = mfsdp_test::singular_values(input, shape).front();
  REQUIRE(largest / smallest > 6);
  const auto check_band = [&](double low, double high, const newton_schulz_options& options) {
    const auto values = mfsdp_test::singular_values(orthogonalised(input, shape, options), shape);
    CHECK(values.front() > low);
    CHECK(values.back() < high);
  };
  check_band(0.68, 1.14, {});
  check_band(0.97, 1.03, {.coefficients = you_coefficients});
  check_band(0.85, 1.15, {.coefficients = polar_express_safe_coefficients, .safety = 1.02});
  check_band(0.87, 1.12, {.coefficients = gram_coefficients});
  check_band(0.88, 1.12, {.coefficients = cans_coefficients});
  check_band(0.999999, 1.000001, {.coefficients = polar_express_coefficients, .steps = 8});
}

TEST_CASE("singular values of a thousandth of the norm come near one with Polar Express and CANS") {
  const auto response = [](const newton_schulz_options& options) {
    return orthogonalised<double>({1e-3, 0, 0, 1}, {2, 2}, options)[0];
  };
  CHECK(response({}) < 0.5);
  CHECK(response({.coefficients = polar_express_safe_coefficients}) > 0.85);
  CHECK(response({.coefficients = cans_coefficients}) > 0.85);
}

}  // namespace newton_schulz_tables_test
