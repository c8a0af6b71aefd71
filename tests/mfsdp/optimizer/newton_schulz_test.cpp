#include "mfsdp/optimizer/newton_schulz.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"

using namespace mfsdp;
using mfsdp_test::relative_distance;

namespace {

template <class T>
std::vector<T> orthogonalised(const std::vector<T>& values, matrix_shape shape, int steps = 5) {
  eigen_backend backend;
  auto x = backend.allocate<T>(shape.elements());
  auto workspace = backend.allocate<T>(newton_schulz_workspace(shape));
  backend.copy(values, x.span());
  backend.fill(workspace.span(), std::numeric_limits<T>::quiet_NaN());
  newton_schulz(backend, matrix_view<T>(x.span().data(), shape), {.steps = steps},
                workspace.span());
  return {x.span().begin(), x.span().end()};
}

}  // namespace

TEST_CASE("Newton-Schulz equals the reference in double and follows it in float") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  for (const std::string name : {"3x5", "5x3", "4x4", "1x5", "5x1", "1x1", "rank2_3x5"}) {
    CAPTURE(name);
    const auto& c = golden.at("ns_" + name);
    const auto& expected = c["keller5_add1e-7"].values;
    CHECK(relative_distance(orthogonalised(c["G"].as<double>(), c["G"].shape), expected) < 1e-11);
    CHECK(relative_distance(orthogonalised(c["G"].as<float>(), c["G"].shape), expected) < 1e-4);
  }
}

TEST_CASE("Newton-Schulz takes inputs of any size, and zero") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& input = golden.at("ns_3x5")["G"];
  for (const std::string scale : {"1e-30", "1e-12", "1e-08", "1e-07", "1e-04", "1e+30"}) {
    CAPTURE(scale);
    const auto& c = golden.at("ns_scaled_" + scale + "_3x5");
    auto scaled = input.values;
    for (double& x : scaled) x *= c.number("scale");
    const std::vector<float> in_float(scaled.begin(), scaled.end());
    CHECK(relative_distance(orthogonalised(scaled, input.shape), c["keller5_add1e-7"].values) <
          1e-11);
    CHECK(relative_distance(orthogonalised(in_float, input.shape), c["keller5_add1e-7"].values) <
          1e-4);
  }
  CHECK(orthogonalised(std::vector<float>(15, 0.0f), {3, 5}) == std::vector<float>(15, 0.0f));

  // The largest floats there are: their norm is not one of them.
  const float largest = std::numeric_limits<float>::max();
  for (const float x : orthogonalised(std::vector<float>(8 * 4096, largest), {8, 4096})) {
    REQUIRE(std::isfinite(x));
    REQUIRE(x > 0);
  }
}

TEST_CASE("Newton-Schulz maps singular values by its polynomial") {
  // A diagonal of unit norm: the diagonal of the result is the scalar response.
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& c = golden.at("ns_scalar_response");
  for (std::size_t i = 0; i < c["x"].values.size(); ++i) {
    const double x = c["x"].values[i];
    const double rest = std::sqrt(1 - x * x);
    const auto y = orthogonalised<double>({x, 0, 0, rest}, {2, 2});
    CHECK(y[0] == doctest::Approx(c["y_keller5"].values[i]).epsilon(2e-6));
    CHECK(y[1] == 0);
  }
}

TEST_CASE("Newton-Schulz of a transpose is the transpose") {
  const matrix_shape wide{24, 60};
  std::vector<double> a, b(static_cast<std::size_t>(wide.elements()));
  for (int i = 0; i < wide.elements(); ++i) a.push_back(std::sin(1.0 + i * 0.37 + i * i * 0.011));
  const auto transposed = [&](const std::vector<double>& x) {
    std::vector<double> t(x.size());
    for (std::size_t i = 0; i < 24; ++i) {
      for (std::size_t j = 0; j < 60; ++j) t[j * 24 + i] = x[i * 60 + j];
    }
    return t;
  };
  for (const int steps : {0, 1, 2, 5}) {
    CAPTURE(steps);
    CHECK(relative_distance(orthogonalised(transposed(a), {60, 24}, steps),
                            transposed(orthogonalised(a, wide, steps))) < 1e-11);
  }
}

TEST_CASE("a table shorter than the steps repeats its last row, a longer one is cut at its end") {
  constexpr std::array<newton_schulz_row, 2> table{{{1.5, -0.5, 0}, {3.4445, -4.7750, 2.0315}}};
  eigen_backend backend;
  // On a 1 x 1 matrix of norm one the result is the polynomial's value.
  const auto value = [&](int steps) {
    std::vector<double> workspace(static_cast<std::size_t>(newton_schulz_workspace({1, 1})));
    double x = 4;
    newton_schulz(backend, matrix_view<double>(&x, 1, 1), {.coefficients = table, .steps = steps},
                  std::span(workspace));
    return x;
  };
  const double once = 3.4445 - 4.7750 + 2.0315;
  CHECK(value(1) == doctest::Approx(1.0));
  CHECK(value(2) == doctest::Approx(once).epsilon(1e-6));
  CHECK(value(3) ==
        doctest::Approx(3.4445 * once - 4.7750 * std::pow(once, 3) + 2.0315 * std::pow(once, 5))
            .epsilon(1e-6));
}

TEST_CASE("the cost counts both orientations alike") {
  CHECK(newton_schulz_flops({128, 512}, 1) == 4 * 128 * 128 * 512 + 2 * 128 * 128 * 128);
  CHECK(newton_schulz_flops({512, 128}, 5) == 5 * newton_schulz_flops({128, 512}, 1));
  CHECK(newton_schulz_flops({0, 7}, 5) == 0);
}
