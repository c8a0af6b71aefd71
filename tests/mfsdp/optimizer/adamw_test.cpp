#include "mfsdp/optimizer/adamw.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "support/golden.hpp"

namespace adamw_test {

using namespace mfsdp;
using mfsdp_test::relative_distance;

namespace {

template <class T>
struct trial {
  std::vector<T> w, m = std::vector<T>(w.size(), T(0)), v = m;

  void step(const adamw& rule, std::int64_t t, const std::vector<T>& gradient) {
    eigen_backend backend;
    const matrix_shape shape{1, std::ssize(w)};
    rule.update(backend, {std::span(m), std::span(v)}, matrix_view<T>(w.data(), shape),
                matrix_view<const T>(gradient.data(), shape), update_context<T>{t});
  }
};

template <class T>
void follow_golden(const mfsdp_test::golden_case& c, const mfsdp_test::golden_case& input,
                   double tolerance, adam_decay decay = adam_decay::decoupled) {
  const adamw rule{.learning_rate = c.number("lr"),
                   .beta1 = c.number("b1"),
                   .beta2 = c.number("b2"),
                   .epsilon = c.number("eps"),
                   .weight_decay = c.number("wd"),
                   .decay = decay};
  trial<T> run{input["W0"].as<T>()};
  for (const int t : {1, 2, 3}) {
    const std::string number = std::to_string(t);
    run.step(rule, t, input["G" + number].as<T>());
    CHECK(relative_distance(run.w, c["W" + number].values) < tolerance);
  }
  CHECK(relative_distance(run.m, c["M3"].values) < tolerance);
  CHECK(relative_distance(run.v, c["V3"].values) < tolerance);
}

}  // namespace

TEST_CASE("adamw equals torch's over three steps") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  for (const std::string name : {"adamw_torch_3x5", "adamw_bigeps_3x5"}) {
    CAPTURE(name);
    follow_golden<double>(golden.at(name), golden.at("muon_keller_3x5"), 1e-11);
    follow_golden<float>(golden.at(name), golden.at("muon_keller_3x5"), 1e-6);
  }
}

TEST_CASE("llm.c's AdamW, which decays with the step, differs in rounding only") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  follow_golden<double>(golden.at("adamw_llmc_3x5"), golden.at("muon_keller_3x5"), 1e-11);
  follow_golden<float>(golden.at("adamw_llmc_3x5"), golden.at("muon_keller_3x5"), 1e-6);
}

TEST_CASE("adamw with its decay in the gradient equals torch's Adam") {
  const auto golden = mfsdp_test::read_golden("optimizer_golden.txt");
  const auto& c = golden.at("adam_l2_3x5");
  follow_golden<double>(c, golden.at("muon_keller_3x5"), 1e-11, adam_decay::l2);
  follow_golden<float>(c, golden.at("muon_keller_3x5"), 1e-5, adam_decay::l2);
}

TEST_CASE("cautious decay spares the weights that their step enlarges") {
  const adamw plain{.learning_rate = 0.5, .weight_decay = 0};
  adamw cautious{.learning_rate = 0.5, .weight_decay = 0.5, .decay = adam_decay::cautious};
  // Signs agree twice, differ twice, then a step and a weight of zero.
  const std::vector<double> start{1, -1, 1, -1, 1, 0};
  const std::vector<double> gradient{1, -1, -1, 1, 0, 1};
  const std::vector<double> decays{0.25, 0.25, 0, 0, 0.25, 0.25};
  trial<double> without{start};
  trial<double> with{start};
  without.step(plain, 1, gradient);
  with.step(cautious, 1, gradient);
  for (std::size_t i = 0; i < start.size(); ++i) {
    CHECK(with.w[i] == doctest::Approx(without.w[i] - decays[i] * start[i]).epsilon(1e-14));
  }
}

TEST_CASE("adamw conforms") {
  mfsdp_test::optimizer_conformance(adamw{});
  mfsdp_test::optimizer_conformance(adamw{.decay = adam_decay::cautious});
  mfsdp_test::optimizer_conformance(adamw{.decay = adam_decay::l2});
  mfsdp_test::optimizer_conformance(adamw{.beta1 = 0, .beta2 = 0, .weight_decay = 0});
}

TEST_CASE("adamw with a zero gradient only decays") {
  trial<double> run{{1.0, -2.0, 0.0}};
  run.step(adamw{.learning_rate = 0.5, .weight_decay = 0.5}, 1, {0.0, 0.0, 0.0});
  CHECK(run.w == std::vector<double>{0.75, -1.5, 0.0});
}

TEST_CASE("adamw at a step beyond 32 bits is past its bias correction") {
  trial<double> run{{0.0}};
  run.step(adamw{}, std::int64_t{1} << 40, {1.0});
  const double expected = -1e-3 * 0.1 / (std::sqrt(1e-3) + 1e-8);
  CHECK(run.w[0] == doctest::Approx(expected).epsilon(1e-12));
}

}  // namespace adamw_test
