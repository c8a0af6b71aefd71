#include "mfsdp/placement/replicated.hpp"

#include <doctest/doctest.h>

#include "conformance/placement.hpp"
#include "support/plan_fakes.hpp"

namespace replicated_test {

TEST_CASE("replicated: conformance") {
  mfsdp_test::check_placement(mfsdp::replicated_placement{});
}

TEST_CASE("replicated: every group is resident, gradients come from and go to every rank") {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("m", 5, 3).vector("v", 7).vector("frozen", 2, {.frozen = true});
  const mfsdp::plan plan =
      mfsdp::make_plan(spec, 2, mfsdp::replicated_placement{}, fakes::by_role{});
  const mfsdp::transfer_group& group = plan.groups.at(0);
  CHECK(group.resident);
  CHECK(group.parameters.full_elements == 48);
  CHECK(group.parameters.shard_elements == std::vector<mfsdp::index_t>{48, 48});
  CHECK(group.parameters.pieces.empty());
  CHECK(group.gradients.pieces ==
        std::vector<mfsdp::piece>{{0, 0, 0, 15}, {1, 0, 0, 15}, {0, 16, 16, 7}, {1, 16, 16, 7}});
  CHECK(plan.local_segments.size() == 6);
}

}  // namespace replicated_test
