// What low_rank says of itself, without a backend.
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "lordo/optimizer/low_rank.hpp"

namespace low_rank_options_test {

using namespace lordo;

TEST_CASE("states are there where the options need them, all exact") {
  const matrix_shape wide{6, 10};
  const auto sizes = [&](const auto& rule, matrix_shape shape) {
    std::vector<index_t> all;
    for (const auto& state : rule.states(shape)) all.push_back(state.elements);
    return all;
  };
  using list = std::vector<index_t>;
  low_rank_adam<> rule{.rank = 2};
  CHECK(sizes(rule, wide) == list{12, 20, 20, 60, 0, 0, 4, 0});
  CHECK(sizes(rule, {10, 6}) == list{12, 20, 20, 60, 0, 0, 4, 0});
  rule.weight_decay = 0.1;
  CHECK(sizes(rule, wide) == list{12, 20, 20, 60, 0, 1, 4, 0});
  rule.decay_from = decay_source::parameter;
  CHECK(sizes(rule, wide) == list{12, 20, 20, 60, 0, 0, 4, 0});
  rule.feedback = error_feedback::window;
  CHECK(sizes(rule, wide) == list{12, 20, 20, 60, 60, 0, 4, 1});
  CHECK(sizes(low_rank_adam<>{.rank = 2, .variant = basis_source::local, .weight_decay = 0.1},
              wide) == list{12, 20, 20, 0, 60, 0, 4, 1});
  CHECK(sizes(low_rank_adam<random_projection>{.rank = 2, .weight_decay = 0.1}, wide) ==
        list{12, 20, 20, 0, 0, 0, 4, 0});
  CHECK(sizes(low_rank_muon<>{.rank = 2}, wide) == list{12, 20, 0, 60, 0, 0, 4, 0});
  // No basis where it would span everything.
  CHECK(sizes(low_rank_adam<>{.rank = 6}, wide) == list{0, 60, 60, 0, 0, 0, 0, 0});
  CHECK(sizes(low_rank_muon<>{.rank = 6}, wide) == list{0, 60, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("exchanges are the ones of the periods, and the first gradient") {
  using flags = std::array<bool, 9>;
  const matrix_shape shape{6, 10};
  low_rank_adam<> rule{.rank = 2,
                       .weight_decay = 0.1,
                       .periods = {.parameters = 4, .first_moment = 8, .second_moment = 0}};
  CHECK(rule.exchanges(shape, {1, 0, 0}) == flags{0, 0, 0, 0, 1, 0, 0, 0});
  CHECK(rule.exchanges(shape, {2, 0, 0}) == flags{});
  CHECK(rule.exchanges(shape, {3, 0, 1}) == flags{});
  CHECK(rule.exchanges(shape, {4, 0, 1}) == flags{1, 0, 0, 0, 0, 0, 1, 0});
  CHECK(rule.exchanges(shape, {8, 0, 1}) == flags{1, 0, 1, 0, 0, 0, 1, 0});
  rule.periods.stagger = 1;
  CHECK(rule.exchanges(shape, {3, 1, 1}) == flags{1, 0, 0, 0, 0, 0, 1, 0});
  CHECK(rule.exchanges(shape, {4, 1, 1}) == flags{});
  rule.periods = {.parameters = 4};
  rule.first = first_basis::random;
  CHECK(rule.exchanges(shape, {1, 0, 0}) == flags{});
  // At full size there is nothing but the moments.
  CHECK(rule.exchanges({2, 10}, {1, 0, 0}) == flags{});
  CHECK(rule.exchanges({2, 10}, {4, 0, 1}) == flags{1, 0, 1, 1, 0, 0, 0, 0});

  rule.variant = basis_source::local;
  CHECK(rule.exchanges(shape, {4, 0, 1}) == flags{1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(rule.exchanges({2, 10}, {4, 0, 1}) == flags{1, 0, 1, 1, 0, 0, 0, 0});
  const low_rank_adam<random_projection> random{.rank = 2, .periods = {.parameters = 4}};
  CHECK(random.exchanges(shape, {1, 0, 0}) == flags{});
  CHECK(random.exchanges(shape, {4, 0, 1}) == flags{1, 0, 1, 1, 0, 0, 0, 0});
  const low_rank_muon<> muon{.rank = 2, .periods = {.parameters = 4}};
  CHECK(muon.exchanges(shape, {4, 0, 1}) == flags{1, 0, 1, 0, 0, 0, 0, 0});
}

TEST_CASE("options that make no sense are refused by name") {
  const auto refuses = [](auto change, const char* text) {
    low_rank_adam<> rule{.rank = 4};
    rule.check();
    change(rule);
    CHECK_THROWS_WITH_AS(rule.check(), doctest::Contains(text), mfsdp::spec_error);
  };
  refuses([](auto& r) { r.rank = 0; }, "low_rank_adam: rank is 0; give the number of directions");
  refuses([](auto& r) { r.learning_rate = -1; }, "learning_rate is -1");
  refuses([](auto& r) { r.omega = 1.5; }, "omega is 1.5");
  refuses([](auto& r) { r.mu = 0; }, "mu is 0");
  refuses([](auto& r) { r.feedback_decay = 2; }, "feedback_decay is 2");
  refuses([](auto& r) { r.weight_decay = -0.5; }, "weight_decay is -0.5");
  refuses([](auto& r) { r.moments.beta2 = 1; }, "low_rank_adam: beta1 is 0.9 and beta2 1");
  refuses([](auto& r) { r.moments.epsilon = 0; }, "epsilon is 0");
  refuses([](auto& r) { r.moments.denominator_floor = -1; }, "denominator_floor is -1");
  refuses([](auto& r) { r.moments.denominator_floor = 2; }, "denominator_floor is 2");
  refuses([](auto& r) { r.feedback_decay = 0.5; }, "no effect without error_feedback::decayed");
  refuses(
      [](auto& r) {
        r.variant = basis_source::local;
        r.decay_from = decay_source::anchor;
      },
      "decay_from is the anchor, which the local form does not keep");
  refuses([](auto& r) { r.clip.threshold = 0; }, "clip.threshold is 0");
  refuses([](auto& r) { r.periods.parameters = 0; }, "periods.parameters is 0");
  CHECK_THROWS_WITH_AS(
      (low_rank_adam<random_projection>{.rank = 4, .decay_from = decay_source::anchor}.check()),
      doctest::Contains("which a rule whose Projector reads no signal"), mfsdp::spec_error);
  low_rank_adam<random_projection>{.rank = 4, .decay_from = decay_source::parameter}.check();
  low_rank_adam<>{.rank = 4, .decay_from = decay_source::anchor}.check();
  low_rank_adam<>{.rank = 4, .feedback = error_feedback::decayed, .feedback_decay = 0.5}.check();
  CHECK_THROWS_WITH_AS((low_rank_muon<>{.rank = 4, .moments = {.beta1 = 1}}.check()),
                       doctest::Contains("low_rank_muon: momentum is 1"), mfsdp::spec_error);
}

TEST_CASE("every option that changes results is in the text") {
  const low_rank_adam<> plain{.rank = 4};
  const auto differs = [&](auto change) {
    low_rank_adam<> rule = plain;
    change(rule);
    CHECK(rule.options() != plain.options());
  };
  differs([](auto& r) { r.rank = 5; });
  differs([](auto& r) { r.learning_rate = 1; });
  differs([](auto& r) { r.variant = basis_source::local; });
  differs([](auto& r) { r.omega = 0.25; });
  differs([](auto& r) { r.mu = 2; });
  differs([](auto& r) { r.full_term = full_rank_term::residual; });
  differs([](auto& r) { r.moments.beta1 = 0.5; });
  differs([](auto& r) { r.moments.beta2 = 0.5; });
  differs([](auto& r) { r.moments.epsilon = 1; });
  differs([](auto& r) { r.moments.bias_correction = false; });
  differs([](auto& r) { r.moments.denominator = denominator_mean::full; });
  differs([](auto& r) { r.moments.denominator_floor = 0; });
  differs([](auto& r) { r.clip.rule = clip_rule::norm; });
  differs([](auto& r) { r.clip.threshold = 2; });
  differs([](auto& r) { r.feedback = error_feedback::full; });
  differs([](auto& r) { r.feedback_decay = 0.5; });
  differs([](auto& r) { r.first = first_basis::random; });
  differs([](auto& r) { r.weight_decay = 0.5; });
  differs([](auto& r) { r.decay_from = decay_source::parameter; });
  differs([](auto& r) { r.periods.parameters = 8; });
  differs([](auto& r) { r.periods.first_moment = 8; });
  differs([](auto& r) { r.periods.second_moment = 8; });
  differs([](auto& r) { r.periods.stagger = 1; });
  CHECK(low_rank_adam<svd>{.rank = 4}.options() != plain.options());
  CHECK(low_rank_adam<random_projection>{.rank = 4, .projector = {1}}.options() !=
        low_rank_adam<random_projection>{.rank = 4, .projector = {2}}.options());
}

TEST_CASE("arithmetic may be asked for before periods are checked") {
  const matrix_shape shape{6, 10};
  CHECK(low_rank_adam<>{.rank = 2, .periods = {.parameters = 0}}.flops(shape) > 0);
}

}  // namespace low_rank_options_test
