#include "mfsdp/optimizer/normuon.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"

namespace normuon_test {

using namespace mfsdp;
using mfsdp_test::one_matrix;
using mfsdp_test::relative_distance;
using mfsdp_test::wavy_matrix;

static_assert(normuon{}.states({3, 5})[0] == state_spec{"momentum", 15, false});
static_assert(normuon{}.states({3, 5})[1] == state_spec{"row_second_moment", 3, true});

namespace {

template <class T>
void follow_golden(const normuon& rule, const mfsdp_test::golden_case& c, double tolerance) {
  CHECK(rule.learning_rate == c.number("lr"));
  CHECK(rule.momentum == c.number("mu"));
  CHECK(rule.weight_decay == c.number("wd"));
  const matrix_shape shape = c["W0"].shape;
  one_matrix<T, normuon> matrix(rule, shape, c["W0"].as<T>());
  // The update alone, as minus the step of a parameter of zeros at a rate of one.
  normuon bare = rule;
  bare.learning_rate = -1;
  bare.form.scale = update_scale::none;
  one_matrix<T, normuon> normalised(bare, shape);
  for (const std::string t : {"1", "2", "3"}) {
    matrix.update(c["G" + t].as<T>());
    CHECK(relative_distance(matrix.parameter, c["W" + t].values) < tolerance);
    std::ranges::fill(normalised.parameter, T(0));
    normalised.update(c["G" + t].as<T>());
    CHECK(relative_distance(normalised.parameter, c["O" + t].values) < tolerance);
  }
  CHECK(relative_distance(matrix.states[0], c["M3"].values) < tolerance);
  CHECK(relative_distance(matrix.states[1], c["V3"].values) < tolerance);
}

}  // namespace

TEST_CASE("normuon equals the reference over three steps") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  normuon rule;
  rule.form.scale = update_scale::match_rms;
  for (const std::string name : {"normuon_dion_3x5", "normuon_dion_5x3"}) {
    CAPTURE(name);
    follow_golden<double>(rule, golden.at(name), 1e-11);
    follow_golden<float>(rule, golden.at(name), 1e-4);
  }
}

TEST_CASE("normuon conforms") {
  mfsdp_test::optimizer_conformance(normuon{});
  mfsdp_test::optimizer_conformance(normuon{.form = muon::keller().form});
}

TEST_CASE("a zero gradient gives a zero update") {
  const std::vector<float> zero(35, 0.0f);
  one_matrix matrix(normuon{.weight_decay = 0}, {5, 7}, wavy_matrix<float>({5, 7}));
  matrix.update(zero);
  CHECK(matrix.parameter == wavy_matrix<float>({5, 7}));
  CHECK(matrix.states[0] == zero);
  CHECK(matrix.states[1] == std::vector<float>(5, 0.0f));
}

TEST_CASE("a row without gradient stays, and the others move") {
  auto gradient = wavy_matrix<double>({5, 7});
  std::fill_n(gradient.begin() + 7, 7, 0.0);
  one_matrix<double, normuon> matrix(normuon{.weight_decay = 0}, {5, 7});
  for (int step = 0; step < 3; ++step) matrix.update(gradient);
  for (std::size_t i = 0; i < 35; ++i) CHECK((matrix.parameter[i] == 0) == (i / 7 == 1));
}

TEST_CASE("the step is as long as that of Muon, after the scale of the shape") {
  for (const update_scale scale :
       {update_scale::none, update_scale::spectral, update_scale::match_rms}) {
    const matrix_shape shape{20, 8};
    muon_form form = muon::dion().form;
    form.scale = scale;
    one_matrix<double, normuon> even(normuon{.learning_rate = 0.01, .form = form}, shape);
    one_matrix<double, muon> plain(muon{.learning_rate = 0.01, .form = form}, shape);
    even.update(wavy_matrix<double>(shape));
    plain.update(wavy_matrix<double>(shape));
    CHECK(mfsdp_test::norm(even.parameter) ==
          doctest::Approx(mfsdp_test::norm(plain.parameter)).epsilon(1e-12));
  }
}

TEST_CASE("the rows of a first step have equal lengths") {
  one_matrix<double, normuon> matrix(normuon{}, {20, 8});
  matrix.update(wavy_matrix<double>({20, 8}));
  const auto row_norm = [&](std::size_t row) {
    double sum = 0;
    for (std::size_t j = 0; j < 8; ++j) sum += std::pow(matrix.parameter[8 * row + j], 2);
    return std::sqrt(sum);
  };
  for (std::size_t i = 1; i < 20; ++i) CHECK(row_norm(i) == doctest::Approx(row_norm(0)));
}

TEST_CASE("on a single row every form of normuon is that form of muon") {
  for (const momentum_rule momentum : {momentum_rule::ema, momentum_rule::heavy_ball}) {
    for (const bool nesterov : {false, true}) {
      const muon_form form{.momentum = momentum, .nesterov = nesterov};
      const auto start = wavy_matrix<double>({1, 9});
      one_matrix even(normuon{.learning_rate = 0.1, .weight_decay = 0.5, .form = form}, {1, 9},
                      start);
      one_matrix plain(muon{.learning_rate = 0.1, .weight_decay = 0.5, .form = form}, {1, 9},
                       start);
      for (const double scale : {1.0, -3.0, 0.2}) {
        even.update(wavy_matrix<double>({1, 9}, scale));
        plain.update(wavy_matrix<double>({1, 9}, scale));
      }
      CHECK(relative_distance(even.parameter, plain.parameter) < 1e-13);
    }
  }
}

TEST_CASE("decays of exactly zero keep no memory") {
  const matrix_shape shape{5, 7};
  one_matrix<double, normuon> first(normuon{.momentum = 0, .second_moment_decay = 0}, shape);
  one_matrix<double, normuon> second(normuon{.momentum = 0, .second_moment_decay = 0}, shape);
  first.update(wavy_matrix<double>(shape, 3));
  first.parameter.assign(35, 0.0);
  auto gradient = wavy_matrix<double>(shape);
  std::ranges::reverse(gradient);
  first.update(gradient);
  second.update(gradient);
  CHECK(first.parameter == second.parameter);
  CHECK(first.states == second.states);
}

TEST_CASE("every option of normuon shows in its text") {
  std::vector<normuon> rules(6);
  rules[1].learning_rate = 1;
  rules[2].momentum = 0.5;
  rules[3].second_moment_decay = 0.5;
  rules[4].weight_decay = 0.5;
  rules[5].form.nesterov = true;
  std::set<std::string> texts;
  for (const normuon& rule : rules) texts.insert(rule.options());
  CHECK(texts.size() == rules.size());
}

}  // namespace normuon_test
