#include "mfsdp/optimizer/newton_schulz.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mfsdp/backend/cpu.hpp"
#include "mfsdp/optimizer/newton_schulz_tables.hpp"
#include "support/allocations.hpp"
#include "support/golden.hpp"

namespace newton_schulz_test {

using namespace mfsdp;
using mfsdp_test::relative_distance;

namespace {

constexpr std::array forms{newton_schulz_form::direct, newton_schulz_form::gram,
                           newton_schulz_form::automatic};

template <class T>
std::vector<T> orthogonalised(const std::vector<T>& values, matrix_shape shape,
                              const newton_schulz_options& options = {}) {
  cpu_backend backend;
  auto x = backend.allocate<T>(shape.elements());
  auto workspace = backend.allocate<T>(newton_schulz_workspace(shape, options.form));
  backend.copy(values, x.span());
  backend.fill(workspace.span(), std::numeric_limits<T>::quiet_NaN());
  newton_schulz(backend, matrix_view<T>(x.span().data(), shape), options, workspace.span());
  return {x.span().begin(), x.span().end()};
}

// The Polar Express, the table with the steepest start, made safe by 1.05.
newton_schulz_table polar_express() {
  return with_safety(polar_express_coefficients, 1.05);
}

// Without structure; the quadratic phase makes it of full rank.
std::vector<double> full_rank(matrix_shape shape) {
  std::vector<double> values;
  for (int i = 0; i < shape.elements(); ++i) {
    values.push_back(std::sin(1.0 + i * 0.37 + std::fmod(i * 0.11 * i, 6.283185307179586)));
  }
  return values;
}

std::vector<float> in_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
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
    CHECK(relative_distance(orthogonalised(scaled, input.shape), c["keller5_add1e-7"].values) <
          1e-11);
    CHECK(relative_distance(orthogonalised(in_float(scaled), input.shape),
                            c["keller5_add1e-7"].values) < 1e-4);
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
    CHECK(relative_distance(orthogonalised(transposed(a), {60, 24}, {.steps = steps}),
                            transposed(orthogonalised(a, wide, {.steps = steps}))) < 1e-11);
  }
}

TEST_CASE("a table shorter than the steps repeats its last row, a longer one is cut at its end") {
  constexpr std::array<newton_schulz_row, 2> table{{{1.5, -0.5, 0}, {3.4445, -4.7750, 2.0315}}};
  cpu_backend backend;
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

TEST_CASE("each form equals the reference of the Gram form in double and follows it in float") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const newton_schulz_table table = polar_express();
  for (const std::string name : {"3x5", "5x3", "4x4", "1x5", "5x1", "1x1"}) {
    for (const newton_schulz_form form : forms) {
      CAPTURE(name);
      const auto& c = golden.at("ns_" + name);
      const auto& expected = c["gram_pe5_s1.05"].values;
      const newton_schulz_options options{.coefficients = table, .form = form};
      CHECK(relative_distance(orthogonalised(c["G"].as<double>(), c["G"].shape, options),
                              expected) < 1e-11);
      CHECK(relative_distance(orthogonalised(c["G"].as<float>(), c["G"].shape, options), expected) <
            1e-4);
    }
  }
}

TEST_CASE("the forms agree, for any number of steps") {
  const newton_schulz_table table = polar_express();
  for (const matrix_shape shape : {matrix_shape{24, 60}, {60, 24}, {30, 30}, {8, 4096}}) {
    const std::vector<double> x = full_rank(shape);
    for (const newton_schulz_table& coefficients :
         {newton_schulz_table(keller_coefficients), table}) {
      for (const int steps : {0, 1, 2, 3, 4, 5, 6, 8, 9}) {
        CAPTURE(shape.rows);
        CAPTURE(steps);
        newton_schulz_options options{.coefficients = coefficients, .steps = steps};
        options.form = newton_schulz_form::direct;
        const std::vector<double> direct = orthogonalised(x, shape, options);
        CHECK(relative_distance(orthogonalised(in_float(x), shape, options), direct) < 1e-4);
        options.form = newton_schulz_form::gram;
        CHECK(relative_distance(orthogonalised(x, shape, options), direct) < 1e-12);
        CHECK(relative_distance(orthogonalised(in_float(x), shape, options), direct) < 1e-4);
      }
    }
  }
}

TEST_CASE("the Gram form stays finite where most singular values vanish") {
  const newton_schulz_table table = polar_express();
  for (const newton_schulz_table& coefficients :
       {newton_schulz_table(keller_coefficients), table}) {
    // Rank 2 but for rounding, which either form lifts by 500 to 1000 in five steps.
    const matrix_shape small{40, 100};
    std::vector<double> x;
    for (int i = 0; i < 40; ++i) {
      for (int j = 0; j < 100; ++j) x.push_back(std::sin(i + 2.0 * j));
    }
    newton_schulz_options options{.coefficients = coefficients, .form = newton_schulz_form::direct};
    const std::vector<double> direct = orthogonalised(x, small, options);
    options.form = newton_schulz_form::gram;
    CHECK(relative_distance(orthogonalised(x, small, options), direct) < 1e-11);
    CHECK(relative_distance(orthogonalised(in_float(x), small, options), direct) < 1e-3);
    options.steps = 20;
    for (const float e : orthogonalised(in_float(x), small, options)) REQUIRE(std::abs(e) < 2);

    // Row i is 2^(-i / 8) times the first but for the last bits.
    const matrix_shape large{512, 1408};
    std::vector<float> y(static_cast<std::size_t>(large.elements()));
    for (std::size_t i = 0; i < 512; ++i) {
      for (std::size_t j = 0; j < 1408; ++j) {
        y[i * 1408 + j] = static_cast<float>(
            std::exp2(-static_cast<double>(i) / 8) *
            (std::sin(1.0 + static_cast<double>(j)) + 1e-6 * std::cos(static_cast<double>(i * j))));
      }
    }
    const std::vector<float> z = orthogonalised(y, large, {.coefficients = coefficients});
    CHECK(std::ranges::all_of(z, [](float e) { return std::abs(e) < 2; }));
  }
}

TEST_CASE("Newton-Schulz allocates nothing after a thread's first product") {
  cpu_backend backend;
  if (backend.kernel() == product_kernel::none) return;
  for (const newton_schulz_form form : forms) {
    const matrix_shape shape{50, 130};
    host_buffer<float> x(shape.elements());
    host_buffer<float> workspace(newton_schulz_workspace(shape, form));
    backend.fill(x.span(), 1.0f);
    const matrix_view<float> view(x.span().data(), shape);
    newton_schulz(backend, view, {.form = form}, workspace.span());
    const long before = mfsdp_test::allocations;
    newton_schulz(backend, view, {.form = form}, workspace.span());
    CHECK(mfsdp_test::allocations == before);
  }
}

TEST_CASE("the cost is that of the form, in both orientations") {
  constexpr index_t cube = 128 * 128 * 128;
  const auto direct = newton_schulz_form::direct;
  const auto gram = newton_schulz_form::gram;
  CHECK(newton_schulz_flops({128, 512}, 1, direct) == (3 * 4 + 1) * cube);
  CHECK(newton_schulz_flops({512, 128}, 5, direct) == (15 * 4 + 5) * cube);
  CHECK(newton_schulz_flops({128, 512}, 5, gram) == (6 * 4 + 14) * cube);
  CHECK(newton_schulz_flops({128, 512}, 1, gram) == (3 * 4 + 1) * cube);
  CHECK(newton_schulz_flops({128, 512}, 6, gram) == (9 * 4 + 15) * cube);
  CHECK(newton_schulz_flops({512, 128}, 5) == newton_schulz_flops({128, 512}, 5, gram));
  CHECK(newton_schulz_flops({128, 128}, 5) == newton_schulz_flops({128, 128}, 5, direct));
  CHECK(newton_schulz_flops({128, 512}, 0) == 0);
  CHECK(newton_schulz_flops({0, 7}, 5) == 0);
}

}  // namespace newton_schulz_test
