#include "mfsdp/optimizer/muon.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"

namespace muon_test {

using namespace mfsdp;
using mfsdp_test::one_matrix;
using mfsdp_test::relative_distance;
using mfsdp_test::wavy_matrix;

// Presets and changes of them are constants.
static_assert(muon{.learning_rate = 0.1}.form.orthogonalization.coefficients ==
              muon::keller().form.orthogonalization.coefficients);
static_assert(muon::torch_match_rms().form.scale == update_scale::match_rms);
static_assert(muon_presets[6].rule.form.orthogonalization.coefficients[4].a ==
              polar_express_coefficients[4].a / 1.05);

namespace {

const std::map<std::string, mfsdp_test::golden_case>& golden() {
  static const auto cases = mfsdp_test::read_golden("optimizer_golden.txt");
  return cases;
}

template <class T>
void follow_golden(const muon& rule, const mfsdp_test::golden_case& c, double tolerance) {
  CHECK(rule.learning_rate == c.number("lr"));
  CHECK(rule.momentum == c.number("mu"));
  CHECK(rule.weight_decay == c.number("wd"));
  const matrix_shape shape = c["W0"].shape;
  one_matrix<T, muon> matrix(rule, shape, c["W0"].as<T>());
  // The update alone, as minus the step of a parameter of zeros at a rate of one.
  muon bare = rule;
  bare.learning_rate = -1;
  bare.form.scale = update_scale::none;
  one_matrix<T, muon> orthogonal(bare, shape);
  for (const std::string t : {"1", "2", "3"}) {
    matrix.update(c["G" + t].as<T>());
    CHECK(relative_distance(matrix.parameter, c["W" + t].values) < tolerance);
    std::ranges::fill(orthogonal.parameter, T(0));
    orthogonal.update(c["G" + t].as<T>());
    CHECK(relative_distance(orthogonal.parameter, c["O" + t].values) < tolerance);
  }
  CHECK(relative_distance(matrix.states[0], c["M3"].values) < tolerance);
}

// The parameter after one update from zeros.
template <class T>
std::vector<T> moved(const muon& rule, matrix_shape shape, const std::vector<T>& gradient) {
  one_matrix<T, muon> matrix(rule, shape);
  matrix.update(gradient);
  return matrix.parameter;
}

}  // namespace

TEST_CASE("every preset equals the reference that it names, over three steps") {
  muon keller_with_decay = muon::keller();
  keller_with_decay.weight_decay = 0.1;
  muon torch_no_nesterov = muon::torch();
  torch_no_nesterov.form.nesterov = false;
  muon dion_cautious = muon::dion();
  dion_cautious.weight_decay = 0.1;
  dion_cautious.form.decay = decay_rule::cautious;
  const std::vector<named_muon> rules{{"keller", muon::keller()},
                                      {"keller_wd", keller_with_decay},
                                      {"torch_original", muon::torch()},
                                      {"torch_match_rms", muon::torch_match_rms()},
                                      {"torch_no_nesterov", torch_no_nesterov},
                                      {"moonlight", muon::moonlight()},
                                      {"dion_default", muon::dion()},
                                      {"dion_cautious", dion_cautious}};
  for (const auto& [name, rule] : rules) {
    for (const std::string shape : {"_3x5", "_5x3"}) {
      CAPTURE(name);
      CAPTURE(shape);
      const auto& c = golden().at("muon_" + std::string(name) + shape);
      follow_golden<double>(rule, c, 1e-11);
      follow_golden<float>(rule, c, 1e-4);
    }
  }
}

TEST_CASE("one step of the nvidia and gram presets equals the reference orthogonalisation") {
  // A momentum of zero hands the gradient on as it is.
  const auto check_step = [](muon rule, const std::string& column, double scale) {
    rule.momentum = 0;
    for (const std::string shape : {"3x5", "5x3", "4x4"}) {
      CAPTURE(column);
      CAPTURE(shape);
      const auto& c = golden().at("ns_" + shape);
      const auto side = static_cast<double>(std::max(c["G"].shape.rows, c["G"].shape.cols));
      one_matrix<double, muon> matrix(rule, c["G"].shape, c["G"].values);
      matrix.update(c["G"].values);
      auto expected = c["G"].values;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] -= rule.learning_rate * (rule.weight_decay * expected[i] +
                                             scale * std::sqrt(side) * c[column].values[i]);
      }
      // The reference columns have an epsilon of 1e-7.
      CHECK(relative_distance(matrix.parameter, expected) < 1e-9);
    }
  };
  CHECK(muon::nvidia().learning_rate == 3e-4);
  CHECK(muon::nvidia().weight_decay == 0.01);
  CHECK(muon::gram().learning_rate == 1e-3);
  CHECK(muon::gram().weight_decay == 0.1);
  check_step(muon::nvidia(), "you5_add1e-7", 1.0);
  check_step(muon::gram(), "gram_pe5_s1.05", 0.2);
}

TEST_CASE("presets are found by name, and an unknown name lists them") {
  for (const named_muon& preset : muon_presets) {
    CHECK(muon_preset(preset.name).options() == preset.rule.options());
  }
  CHECK(muon_preset("moonlight").form.momentum == momentum_rule::heavy_ball);
  CHECK_THROWS_WITH_AS((void)muon_preset("moon"),
                       "no preset of muon is named 'moon'; there are: keller torch "
                       "torch_match_rms moonlight dion nvidia gram",
                       spec_error);
}

TEST_CASE("every option of muon shows in its text") {
  const std::array<newton_schulz_row, 1> other{{{1.5, -0.5, 0}}};
  std::vector<muon> rules(13);
  rules[1].learning_rate = 1;
  rules[2].momentum = 0.5;
  rules[3].weight_decay = 0.1;
  rules[4].form.momentum = momentum_rule::heavy_ball;
  rules[5].form.nesterov = false;
  rules[6].form.scale = update_scale::none;
  rules[7].form.decay = decay_rule::cautious;
  rules[8].form.orthogonalization.steps = 6;
  rules[9].form.orthogonalization.safety = 1.01;
  rules[10].form.orthogonalization.epsilon = 1e-8;
  rules[11].form.orthogonalization.rule = epsilon_rule::clamp;
  rules[12].form.orthogonalization.coefficients = other;
  std::set<std::string> texts;
  for (const muon& rule : rules) texts.insert(rule.options());
  CHECK(texts.size() == rules.size());
}

TEST_CASE("a zero gradient only decays, whatever the preset") {
  const auto& c = golden().at("muon_keller_wd_zero_grad_3x5");
  const std::vector<double> zero(15, 0.0);
  const auto start = golden().at("muon_keller_3x5")["W0"].values;
  one_matrix matrix(muon{.learning_rate = c.number("lr"), .weight_decay = c.number("wd")}, {3, 5},
                    start);
  for (const std::string t : {"1", "2", "3"}) {
    matrix.update(zero);
    CHECK(relative_distance(matrix.parameter, c["W" + t].values) < 1e-15);
  }
  CHECK(matrix.states[0] == zero);

  for (const auto& [name, rule] : muon_presets) {
    CAPTURE(name);
    one_matrix still(rule, {3, 5}, start);
    still.update(zero);
    const double keep = 1 - rule.learning_rate * rule.weight_decay;
    for (std::size_t i = 0; i < 15; ++i) CHECK(still.parameter[i] == keep * start[i]);
    still.states[0].assign(15, 2.0);
    still.update(zero);
    CHECK(still.states[0] == std::vector<double>(15, 0.95 * 2.0));
  }
}

TEST_CASE("muon conforms") {
  for (const auto& [name, rule] : muon_presets) {
    CAPTURE(name);
    mfsdp_test::optimizer_conformance(rule);
  }
  mfsdp_test::optimizer_conformance(
      muon{.weight_decay = 0.1,
           .form = {.orthogonalization = {.steps = 2}, .decay = decay_rule::cautious}});
}

TEST_CASE("an update leaves the gradient as it was, with look-ahead and without") {
  for (const bool nesterov : {false, true}) {
    const auto before = wavy_matrix<float>({7, 13});
    const auto gradient = before;
    moved(muon{.form = {.nesterov = nesterov}}, {7, 13}, gradient);
    CHECK(gradient == before);
  }
}

TEST_CASE("the step of muon does not depend on the size of the gradient") {
  for (const auto& [name, rule] : muon_presets) {
    CAPTURE(name);
    const auto reference = moved(rule, {8, 12}, wavy_matrix<float>({8, 12}));
    const std::vector<double> expected(reference.begin(), reference.end());
    for (const double scale : {1e-2, 1e2, 1e5, 1e10, 1e30}) {
      CAPTURE(scale);
      CHECK(relative_distance(moved(rule, {8, 12}, wavy_matrix<float>({8, 12}, scale)), expected) <
            1e-3);
    }
  }
}

TEST_CASE("tiny gradients take whole steps with an epsilon of 1e-15, and fade with one of 1e-7") {
  constexpr matrix_shape shape{8, 12};
  const auto reference = moved(muon::nvidia(), shape, wavy_matrix<float>(shape));
  const std::vector<double> expected(reference.begin(), reference.end());
  for (const double scale : {1e-12, 1e-9, 1e-6}) {
    CAPTURE(scale);
    const auto step = moved(muon::nvidia(), shape, wavy_matrix<float>(shape, scale));
    CHECK(relative_distance(step, expected) < 1e-3);
  }
  const double whole = mfsdp_test::norm(moved(muon::keller(), shape, wavy_matrix<float>(shape)));
  const auto faded = moved(muon::keller(), shape, wavy_matrix<float>(shape, 1e-12));
  CHECK(mfsdp_test::norm(faded) < 0.1 * whole);
}

TEST_CASE("the singular values of a step are near one, those of its gradient are not") {
  for (const matrix_shape shape : {matrix_shape{16, 40}, matrix_shape{40, 16}}) {
    const auto gradient = wavy_matrix<double>(shape);
    const auto before = mfsdp_test::singular_values(gradient, shape);
    REQUIRE(before.back() > 2 * before.front());
    for (const auto& [name, preset] : muon_presets) {
      CAPTURE(name);
      muon rule = preset;
      rule.learning_rate = 1;
      rule.form.scale = update_scale::none;
      const auto after = mfsdp_test::singular_values(moved(rule, shape, gradient), shape);
      CHECK(after.front() > 0.68);
      CHECK(after.back() < 1.15);
    }
  }
}

TEST_CASE("heavy ball and moving average take the same steps from different momenta") {
  for (const bool nesterov : {false, true}) {
    const auto after = [&](momentum_rule momentum) {
      one_matrix matrix(muon{.weight_decay = 0.1,
                             .form = {.momentum = momentum,
                                      .nesterov = nesterov,
                                      .orthogonalization = {.epsilon = 1e-300}}},
                        {3, 5}, wavy_matrix<double>({3, 5}, 0.5));
      for (const std::string t : {"1", "2", "3"}) {
        matrix.update(golden().at("muon_keller_3x5")["G" + t].values);
      }
      return matrix;
    };
    const auto ball = after(momentum_rule::heavy_ball);
    auto average = after(momentum_rule::ema);
    CHECK(relative_distance(ball.parameter, average.parameter) < 1e-13);
    for (double& m : average.states[0]) m /= 1 - 0.95;
    CHECK(relative_distance(ball.states[0], average.states[0]) < 1e-13);
  }
}

TEST_CASE("a momentum of exactly zero orthogonalises the gradient alone") {
  const auto gradient = wavy_matrix<double>({3, 5});
  for (const momentum_rule momentum : {momentum_rule::ema, momentum_rule::heavy_ball}) {
    for (const bool nesterov : {false, true}) {
      one_matrix<double, muon> matrix(
          muon{.momentum = 0, .form = {.momentum = momentum, .nesterov = nesterov}}, {3, 5});
      matrix.update(wavy_matrix<double>({3, 5}, -7));
      matrix.update(gradient);
      CHECK(matrix.states[0] == gradient);
    }
  }
}

TEST_CASE("the scale of a step has rows and columns the right way round") {
  const matrix_shape tall{12, 3};
  const matrix_shape wide{3, 12};
  CHECK(scale_factor(update_scale::none, tall) == 1);
  CHECK(scale_factor(update_scale::none, wide) == 1);
  CHECK(scale_factor(update_scale::tall, tall) == 2);
  CHECK(scale_factor(update_scale::tall, wide) == 1);
  CHECK(scale_factor(update_scale::spectral, tall) == 2);
  CHECK(scale_factor(update_scale::spectral, wide) == 0.5);
  CHECK(scale_factor(update_scale::match_rms, tall) == doctest::Approx(0.2 * std::sqrt(12.0)));
  CHECK(scale_factor(update_scale::match_rms, wide) == doctest::Approx(0.2 * std::sqrt(12.0)));
  CHECK(scale_factor(update_scale::unit_rms, tall) == doctest::Approx(std::sqrt(12.0)));
  CHECK(scale_factor(update_scale::unit_rms, wide) == doctest::Approx(std::sqrt(12.0)));

  // And reaches the parameter: a step over the same step without it.
  for (const matrix_shape shape : {tall, wide}) {
    for (const update_scale scale : {update_scale::tall, update_scale::spectral,
                                     update_scale::match_rms, update_scale::unit_rms}) {
      const auto gradient = wavy_matrix<double>(shape);
      const double bare =
          mfsdp_test::norm(moved(muon{.form = {.scale = update_scale::none}}, shape, gradient));
      const double scaled =
          mfsdp_test::norm(moved(muon{.form = {.scale = scale}}, shape, gradient));
      CHECK(scaled / bare == doctest::Approx(scale_factor(scale, shape)));
    }
  }
}

TEST_CASE("the root mean square of a step is the one documented for its scale") {
  // Of the orthogonal factor it is 1 / sqrt(max(rows, cols)); all singular values at one.
  const auto rms = [](update_scale scale, matrix_shape shape) {
    const muon rule{
        .learning_rate = 1,
        .form = {.orthogonalization = {.coefficients = polar_express_coefficients, .steps = 8},
                 .scale = scale}};
    return mfsdp_test::norm(moved(rule, shape, wavy_matrix<double>(shape))) /
           std::sqrt(static_cast<double>(shape.elements()));
  };
  CHECK(rms(update_scale::tall, {48, 12}) == doctest::Approx(1 / std::sqrt(12.0)));
  CHECK(rms(update_scale::tall, {12, 48}) == doctest::Approx(1 / std::sqrt(48.0)));
  CHECK(rms(update_scale::spectral, {48, 12}) == doctest::Approx(1 / std::sqrt(12.0)));
  CHECK(rms(update_scale::spectral, {12, 48}) == doctest::Approx(0.5 / std::sqrt(48.0)));
  for (const matrix_shape shape : {matrix_shape{48, 12}, matrix_shape{12, 48}}) {
    CHECK(rms(update_scale::match_rms, shape) == doctest::Approx(0.2));
    CHECK(rms(update_scale::unit_rms, shape) == doctest::Approx(1.0));
  }
}

TEST_CASE("cautious decay spares the weights that the update lets grow") {
  const auto after = [](double weight, double gradient) {
    one_matrix<double, muon> matrix(
        muon{.learning_rate = 0.1, .weight_decay = 1, .form = {.decay = decay_rule::cautious}},
        {1, 1}, {weight});
    matrix.update({gradient});
    return matrix.parameter[0];
  };
  const double step = 0.1 * 0.6964;  // Keller's answer to a matrix of one element
  CHECK(after(2, 3) == doctest::Approx(0.9 * 2 - step).epsilon(1e-4));
  CHECK(after(2, -3) == doctest::Approx(2 + step).epsilon(1e-4));
  CHECK(after(-2, 3) == doctest::Approx(-2 - step).epsilon(1e-4));
  CHECK(after(-2, -3) == doctest::Approx(-0.9 * 2 + step).epsilon(1e-4));
  CHECK(after(2, 0) == doctest::Approx(0.9 * 2));
}

TEST_CASE("sides that no packet divides change nothing") {
  // The same matrix with a border of zeros up to full packets.
  constexpr matrix_shape shape{7, 13};
  constexpr matrix_shape bordered{8, 16};
  const auto inner = wavy_matrix<double>(shape);
  std::vector<double> outer(8 * 16, 0.0);
  for (std::size_t i = 0; i < 7; ++i) {
    std::copy_n(inner.begin() + static_cast<index_t>(13 * i), 13,
                outer.begin() + static_cast<index_t>(16 * i));
  }
  const muon rule{.form = {.scale = update_scale::none}};
  const auto got = moved(rule, shape, inner);
  const auto all = moved(rule, bordered, outer);
  std::vector<double> expected;
  for (std::size_t i = 0; i < 7; ++i) {
    expected.insert(expected.end(), all.begin() + static_cast<index_t>(16 * i),
                    all.begin() + static_cast<index_t>(16 * i + 13));
  }
  CHECK(relative_distance(got, expected) < 1e-13);
}

TEST_CASE("a matrix of extreme aspect takes a finite step of the usual length") {
  for (const auto& [name, rule] : muon_presets) {
    CAPTURE(name);
    for (const matrix_shape shape : {matrix_shape{8, 4096}, matrix_shape{4096, 8}}) {
      const double length =
          mfsdp_test::norm(moved(rule, shape, wavy_matrix<float>(shape))) /
          (rule.learning_rate * scale_factor(rule.form.scale, shape) * std::sqrt(8.0));
      CHECK(length > 0.68);
      CHECK(length < 1.14);
    }
  }
}

}  // namespace muon_test
