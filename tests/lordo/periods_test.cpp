#include "lordo/periods.hpp"

#include <doctest/doctest.h>

namespace periods_test {

using lordo::sync_periods;

TEST_CASE("moments meet with the parameters unless they have a period of their own") {
  constexpr sync_periods plain{.parameters = 4};
  static_assert(plain.parameters_due(8, 3) && !plain.parameters_due(9, 3));
  static_assert(plain.first_moment_due(8, 3) && plain.second_moment_due(8, 3));

  constexpr sync_periods own{.parameters = 4, .first_moment = 12, .second_moment = 0};
  static_assert(!own.first_moment_due(8, 0) && own.first_moment_due(12, 0));
  static_assert(!own.second_moment_due(12, 0));
}

TEST_CASE("staggered items take turns, each once in a period") {
  constexpr sync_periods periods{.parameters = 8, .stagger = 3};
  for (std::size_t item = 0; item < 20; ++item) {
    int syncs = 0;
    for (std::int64_t step = 1; step <= 8; ++step) {
      if (!periods.parameters_due(step, item)) continue;
      ++syncs;
      CHECK((step + 3 * static_cast<std::int64_t>(item)) % 8 == 0);
    }
    CHECK(syncs == 1);
  }
  CHECK(periods.parameters_due(5, 1));
  CHECK_FALSE(periods.parameters_due(8, 1));
}

TEST_CASE("a stagger counts modulo the period, however large it is") {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  for (const std::int64_t period : {std::int64_t{7}, std::int64_t{32}, huge - 1}) {
    // 2^62 is 4 modulo 7, 0 modulo 32, 1 modulo 2^62 - 1.
    const std::int64_t rest = huge % period;
    const sync_periods large{.parameters = period, .stagger = huge};
    const sync_periods same{.parameters = period, .stagger = rest};
    for (std::size_t item = 0; item < 50; ++item) {
      for (std::int64_t step = 1; step <= 64; ++step) {
        CHECK(large.parameters_due(step, item) == same.parameters_due(step, item));
      }
    }
  }
  constexpr sync_periods wide{.parameters = huge, .stagger = huge - 1};
  static_assert(wide.parameters_due(5, 5) && !wide.parameters_due(5, 4));
}

TEST_CASE("periods that make no sense are refused by name") {
  sync_periods{}.check("rule");
  CHECK_THROWS_WITH_AS(sync_periods{.parameters = 0}.check("rule"),
                       doctest::Contains("rule: periods.parameters is 0"), mfsdp::spec_error);
  CHECK_THROWS_WITH_AS((sync_periods{.first_moment = -2}.check("rule")), doctest::Contains("is -2"),
                       mfsdp::spec_error);
  CHECK_THROWS_WITH_AS((sync_periods{.second_moment = -1}.check("rule")),
                       doctest::Contains("is -1"), mfsdp::spec_error);
  CHECK_THROWS_WITH_AS((sync_periods{.stagger = -1}.check("rule")),
                       doctest::Contains("periods.stagger is -1"), mfsdp::spec_error);
}

}  // namespace periods_test
