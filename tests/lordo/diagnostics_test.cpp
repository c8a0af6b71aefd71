#include "lordo/diagnostics.hpp"

#include <doctest/doctest.h>

#include "lordo/lordo.hpp"
#include "support/site_training.hpp"

namespace diagnostics_test {

using namespace mfsdp;

namespace {

// The report of one site after eight meetings.
template <class Rule>
lordo::basis_report report_of(const Rule& rule, index_t side = 12) {
  lordo::basis_report report;
  thread_world{1}.run([&](auto comm) {
    model_spec spec;
    spec.unit("unit").matrix("wide", side, 20);
    sharded_model model{spec, comm, owner_placement{}, rule};
    model.initialize(toy::initialize);
    toy::train_site(model, {.ranks = {1}, .parts = {1}, .steps = 16});
    report = lordo::describe_bases(model);
  });
  return report;
}

const lordo::sync_periods meet{.parameters = 2};

}  // namespace

TEST_CASE("a basis that stands still is warned of, one that moves is not") {
  const auto still = report_of(lordo::low_rank_adam<>{.rank = 3, .omega = 1, .periods = meet});
  REQUIRE(still.matrices.size() == 1);
  CHECK(still.matrices[0].tensor == "unit.wide");
  CHECK(still.matrices[0].movement < lordo::still_movement);
  CHECK(still.matrices[0].still >= 3);
  CHECK(still.matrices[0].ratio == 0);
  CHECK(lordo::to_text(still).find("warning: 1 of 1 bases, 'unit.wide' among them") !=
        std::string::npos);

  const auto moving = report_of(
      lordo::low_rank_adam<lordo::random_projection>{.rank = 3, .omega = 0.5, .periods = meet});
  REQUIRE(moving.matrices.size() == 1);
  CHECK(moving.matrices[0].movement > 0.3);
  CHECK(moving.matrices[0].ratio > 0);
  CHECK(moving.matrices[0].captured > 0);
  CHECK(moving.matrices[0].captured < 1);
  CHECK(lordo::to_text(moving).find("warning") == std::string::npos);
}

TEST_CASE("a matrix with a side within the rank is named") {
  const auto report = report_of(lordo::low_rank_adam<>{.rank = 3, .periods = meet}, 3);
  CHECK(report.matrices.empty());
  CHECK(report.full_size == std::vector<std::string>{"unit.wide"});
  CHECK(lordo::to_text(report) ==
        "'unit.wide' has a side within the rank and is updated at full size\n");
}

TEST_CASE("means, and nothing to say without low rank") {
  lordo::basis_report two;
  two.matrices.resize(2);
  two.matrices[0].movement = 0.25;
  two.matrices[1].movement = 0.75;
  CHECK(two.mean(&lordo::basis_state::movement) == 0.5);
  CHECK(lordo::to_text({}).empty());
}

}  // namespace diagnostics_test
