// The LoRDO rule against numbers from its formulas, computed by an independent script.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "lordo/optimizer/low_rank.hpp"
#include "support/chosen_projector.hpp"
#include "support/golden.hpp"
#include "support/plain_sites.hpp"
#include "support/singular.hpp"

namespace low_rank_golden_test {

using namespace lordo;
using mfsdp_test::golden_case;

namespace {

constexpr double tolerance = 1e-10;
constexpr double lr = 0.125;
constexpr double b1 = 0.75;
constexpr double b2 = 0.875;

const auto& cases() {
  static const auto all = mfsdp_test::read_golden("lordo_golden.txt");
  return all;
}

matrix_view<const double> view(const std::vector<double>& x, matrix_shape shape) {
  return {x.data(), shape};
}

// Two workers on the problem of the file, or on its transpose, whose results are then transposed
// back. Compares everything that the case prints.
template <class O>
class replay {
 public:
  replay(const std::string& name, const O& rule, bool flipped = false)
      : file_(cases().at(name)),
        rule_(rule),
        flipped_(flipped),
        sites_(rule, flipped ? matrix_shape{q, p} : matrix_shape{p, q}, 2,
               flipped ? flip(file_["theta0"].values, p) : file_["theta0"].values) {
    for (const auto& [key, values] : file_.matrices) open_.insert(key);
    open_.erase("theta0");
    open_.erase("span_drift");
    anchor_ = theta(0);
    for (int t = 1; t <= 4; ++t) step("t" + std::to_string(t), t);
    // Without feedback the file prints errors of zeros, and there is no state to compare.
    if (sites_.state(O::error).empty())
      std::erase_if(open_, [](const std::string& key) {
        return key.ends_with("/E") || key.ends_with("/Ghat");
      });
    for (const std::string& key : open_) FAIL_CHECK("not compared: " << key);
  }

 private:
  static constexpr index_t p = 3, q = 4, r = 2;
  using matrix = std::vector<double>;

  // x of `rows` rows, transposed.
  static matrix flip(const matrix& x, index_t rows) {
    const auto n = static_cast<std::size_t>(rows);
    const std::size_t cols = x.size() / n;
    matrix y;
    for (std::size_t j = 0; j < cols; ++j) {
      for (std::size_t i = 0; i < n; ++i) y.push_back(x[i * cols + j]);
    }
    return y;
  }
  // What stands as p x q or r x q in the file; on the transposed problem q rows.
  matrix straight(const matrix& x) const { return flipped_ ? flip(x, q) : x; }
  matrix theta(std::size_t w) const { return straight(sites_.parameter(w)); }
  matrix state(std::size_t k, std::size_t w) const { return straight(sites_.state(k, w)); }
  matrix basis(std::size_t w) const { return sites_.state(O::basis, w); }

  void compare(const std::string& key, const matrix& got) {
    if (!file_.matrices.contains(key)) return;
    open_.erase(key);
    CAPTURE(key);
    const matrix& expected = file_[key].values;
    REQUIRE(got.size() == expected.size());
    double error = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error = std::max(error, std::abs(got[i] - expected[i]));
    }
    CHECK(error < tolerance);
  }

  matrix gradient(const matrix& x, std::size_t m, int t) const {
    static constexpr double rows[2][3] = {{1, 0.75, 0.5}, {0.875, 1, 0.625}};
    static constexpr double cols[4] = {1, 0.5, 0.75, 1.25};
    const matrix& target = cases().at("input")["target_w" + std::to_string(m)].values;
    matrix g;
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 4; ++j) {
        const std::size_t noise = (7 * i + 3 * j + 5 * static_cast<std::size_t>(t) + 11 * m) % 13;
        g.push_back(rows[m][i] * cols[j] * (x[i * 4 + j] - target[i * 4 + j]) +
                    (static_cast<double>(noise) - 6) / 10);
      }
    }
    return g;
  }

  struct before {
    matrix theta, basis, error, u, v;
  };

  void step(const std::string& at, int t) {
    std::vector<matrix> gradients;
    std::vector<before> sites;
    for (std::size_t m = 0; m < 2; ++m) {
      const matrix g = gradient(theta(m), m, t);
      compare(at + "/w" + std::to_string(m) + "/G", g);
      gradients.push_back(flipped_ ? flip(g, p) : g);
      sites.push_back({theta(m), basis(m), state(O::error, m), state(O::first_moment, m),
                       state(O::second_moment, m)});
    }
    std::vector<before> at_sync(2);
    sites_.step(
        gradients,
        [&] {
          compare(at + "/Q", flip(basis(0), r));
          for (std::size_t m = 0; m < 2; ++m) {
            updated(at + "/w" + std::to_string(m), t, m, gradients[m], sites[m]);
          }
        },
        [&](int round) {
          if (round == 0) return;
          compare(at + "/sync/u_mean", state(O::first_moment, 1));
          compare(at + "/sync/v_mean", state(O::second_moment, 1));
          at_sync[0].basis = basis(0);
        });
    if (!file_.matrices.contains(at + "/sync/theta")) return;

    matrix delta = theta(1);
    for (std::size_t i = 0; i < delta.size(); ++i) delta[i] -= anchor_[i];
    anchor_ = theta(0);
    const std::string sync = at + "/sync";
    compare(sync + "/Delta", delta);
    compare(sync + "/theta", anchor_);
    compare(sync + "/sigma", mfsdp_test::left_singular(delta, {p, q}).values);
    compare(sync + "/Qnew", flip(basis(1), r));
    compare(sync + "/R", rotation_of(basis(0), at_sync[0].basis));
    for (std::size_t m = 0; m < 2; ++m) {
      compare(sync + "/w" + std::to_string(m) + "/u_rot", state(O::first_moment, m));
      compare(sync + "/w" + std::to_string(m) + "/v_rot", state(O::second_moment, m));
    }
  }

  // Everything that follows from the states of a site around its update.
  void updated(const std::string& at, int t, std::size_t m, const matrix& raw, before was) {
    const matrix b = basis(m);
    if (file_.matrices.contains(at + "/R")) {
      const matrix rotation = rotation_of(b, was.basis);
      matrix workspace(static_cast<std::size_t>(rotation_workspace({r, q}, r)));
      const double c1 = 1 - std::pow(b1, t - 1), c2 = 1 - std::pow(b2, t - 1);
      rotate_moments(backend_, projection_side::left, view(rotation, {r, r}), c1, c2,
                     matrix_view<double>(was.u.data(), r, q),
                     matrix_view<double>(was.v.data(), r, q), workspace);
      compare(at + "/R", rotation);
      compare(at + "/u_rot", was.u);
      compare(at + "/v_rot", was.v);
    }
    if (file_.matrices.contains(at + "/Q")) compare(at + "/Q", flip(b, r));
    const matrix u = state(O::first_moment, m), v = state(O::second_moment, m);
    matrix g(u.size());
    for (std::size_t i = 0; i < u.size(); ++i) g[i] = (u[i] - b1 * was.u[i]) / (1 - b1);
    compare(at + "/ghat", g);
    compare(at + "/u", u);
    compare(at + "/v", v);
    compare(at + "/theta", theta(m));

    const matrix error = state(O::error, m);
    const matrix lifted = lift_of(b, g);
    matrix clipped(12);
    for (std::size_t i = 0; i < 12; ++i) {
      clipped[i] = error.empty() ? std::clamp(straight(raw)[i], -1.0, 1.0)
                                 : error[i] - was.error[i] + lifted[i];
    }
    if (!error.empty()) {
      compare(at + "/E", error);
      compare(at + "/Ghat", clipped);
    }
    if (file_.matrices.contains(at + "/sigma")) {
      matrix signal = clipped;
      for (std::size_t i = 0; i < 12; ++i) signal[i] += was.error[i];
      compare(at + "/sigma", mfsdp_test::left_singular(signal, {p, q}).values);
    }

    const double keep =
        rule_.decay_from == decay_source::parameter ? 1 - lr * rule_.weight_decay : 1;
    matrix update(12), full(12), step(8);
    for (std::size_t i = 0; i < 12; ++i) update[i] = (keep * was.theta[i] - theta(m)[i]) / lr;
    compare(at + "/update", update);

    // d, as what the clipped gradient was divided by.
    if (!file_.matrices.contains(at + "/d")) return;
    for (std::size_t i = 0; i < 8; ++i) {
      step[i] = u[i] / (1 - std::pow(b1, t)) / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + 1e-8);
    }
    const matrix low = lift_of(b, step);
    matrix d;
    for (std::size_t j = 0; j < static_cast<std::size_t>(file_[at + "/d"].shape.cols); ++j) {
      std::size_t i = j;  // the entry of the column that says most
      for (std::size_t k = j; k < 12; k += 4) {
        if (std::abs(clipped[k]) > std::abs(clipped[i])) i = k;
      }
      d.push_back((1 - rule_.omega) / rule_.mu * clipped[i] / (update[i] - rule_.omega * low[i]));
    }
    compare(at + "/d", d);
  }

  matrix rotation_of(const matrix& now, const matrix& old) const {
    matrix product(4);
    rotation<mfsdp::eigen_backend, double>(backend_, view(now, {r, p}), view(old, {r, p}),
                                           matrix_view<double>(product.data(), r, r));
    return product;
  }
  matrix lift_of(const matrix& b, const matrix& low) const {
    matrix lifted(12);
    lift<mfsdp::eigen_backend, double>(backend_, 1, view(b, {r, p}), view(low, {r, q}), 0,
                                       matrix_view<double>(lifted.data(), p, q));
    return lifted;
  }

  const golden_case& file_;
  O rule_;
  bool flipped_;
  mutable mfsdp::eigen_backend backend_;
  mfsdp_test::plain_sites<double, O> sites_;
  matrix anchor_;
  std::set<std::string> open_;
};

low_rank_adam<mfsdp_test::chosen_projector> rule_of_the_file(bool power) {
  return {.rank = 2,
          .learning_rate = lr,
          .omega = 0.75,
          .moments = {.beta1 = b1, .beta2 = b2, .denominator_floor = 0},
          .projector = {power},
          .clip = {.rule = clip_rule::element, .threshold = 1},
          .feedback = error_feedback::full,
          .periods = {.parameters = 2}};
}

}  // namespace

TEST_CASE("A: global, SVD") {
  replay("A", rule_of_the_file(false));
}

TEST_CASE("R: the transposed problem, on the right side") {
  replay("A", rule_of_the_file(false), true);
}

TEST_CASE("B: power step, moments at half the pace, full mean, mu, decay of the parameter") {
  auto rule = rule_of_the_file(true);
  rule.omega = 0.5;
  rule.mu = 2;
  rule.moments.denominator = denominator_mean::full;
  rule.weight_decay = 0.5;
  rule.decay_from = decay_source::parameter;
  rule.periods = {.parameters = 2, .first_moment = 4, .second_moment = 4};
  replay("B", rule);
  replay("B", rule, true);
}

TEST_CASE("C: no full-rank term") {
  auto rule = rule_of_the_file(false);
  rule.omega = 1;
  replay("C", rule);
}

TEST_CASE("D: quasi-hyperbolic in the subspace, no bias correction, no feedback, power step") {
  auto rule = rule_of_the_file(true);
  rule.full_term = full_rank_term::projected;
  rule.moments.bias_correction = false;
  rule.feedback = error_feedback::none;
  replay("D", rule);
}

TEST_CASE("L: local, own bases, moments stay") {
  auto rule = rule_of_the_file(false);
  rule.variant = basis_source::local;
  replay("L", rule);
  replay("L", rule, true);
}

}  // namespace low_rank_golden_test
