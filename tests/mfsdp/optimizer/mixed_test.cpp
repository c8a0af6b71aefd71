#include "mfsdp/optimizer/mixed.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "conformance/optimizer.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"

namespace mixed_test {

using namespace mfsdp;

static_assert(std::is_same_v<decltype(mixed{muon{}, adamw{}}), mixed<muon, adamw>>);
static_assert(OptimizerSet<mixed<muon, adamw>>);
static_assert(!OptimizerSet<muon>);
static_assert(OptimizerSet<mixed<adamw, adamw>>);
static_assert(OptimizerSet<mixed<gathered<muon>, adamw>>);

static_assert(gathered<muon>::name == "gathered muon");
static_assert(UpdatesOn<gathered<muon>, eigen_backend>);

TEST_CASE("mixed sends matrices to its first member and the rest to its second") {
  model_spec spec;
  spec.unit("block").matrix("weight", 4, 3).vector("gain", 4).elementwise("embedding", {10, 4});
  constexpr mixed set{muon{.learning_rate = 0.3}, adamw{.learning_rate = 0.4}};
  CHECK(set.route(spec.tensors()[0]) == 0);
  CHECK(set.route(spec.tensors()[1]) == 1);
  CHECK(set.route(spec.tensors()[2]) == 1);
  CHECK(std::get<0>(optimizer_members(set)).learning_rate == 0.3);
  CHECK(std::get<1>(optimizer_members(set)).learning_rate == 0.4);
}

TEST_CASE("a single optimizer is a set of one") {
  CHECK(std::get<0>(optimizer_members(adamw{.learning_rate = 0.4})).learning_rate == 0.4);
  CHECK(optimizer_route(adamw{}, tensor_spec{}) == 0);
}

TEST_CASE("gathered conforms and costs what its rule costs") {
  mfsdp_test::optimizer_conformance(gathered{muon{.weight_decay = 0.1}});
  constexpr matrix_shape shape{6, 9};
  constexpr muon rule{.form = {.orthogonalization = {.steps = 3}}};
  CHECK(gathered{rule}.flops(shape) == rule.flops(shape));
  CHECK(gathered{rule}.states(shape) == rule.states(shape));
  CHECK(gathered{rule}.workspace_size(shape) == rule.workspace_size(shape));
}

TEST_CASE("rows of a gathered update do not depend on other rows of the parameter") {
  constexpr matrix_shape shape{5, 3};
  const gathered rule{muon{.weight_decay = 0.1}};
  eigen_backend backend;
  auto workspace = backend.allocate<float>(rule.workspace_size(shape));
  const auto updated = [&](float others) {
    std::vector<float> parameter(15, others), momentum(15, 0.0f), gradient;
    parameter[6] = parameter[7] = parameter[8] = 0.25f;
    for (int i = 0; i < 15; ++i) gradient.push_back(static_cast<float>(i * i % 7) - 3);
    rule.update(backend, {std::span(momentum)}, matrix_view<float>(parameter.data(), shape),
                matrix_view<const float>(gradient.data(), shape),
                update_context<float>{1, 1, workspace.span()});
    return std::vector<float>(parameter.begin() + 6, parameter.begin() + 9);
  };
  CHECK(updated(1.0f) == updated(std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace mixed_test
