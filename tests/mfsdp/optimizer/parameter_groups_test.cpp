#include "mfsdp/optimizer/parameter_groups.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "support/toy_training.hpp"

namespace parameter_groups_test {

using namespace mfsdp;

namespace {

using two_rates = parameter_groups<adamw, muon, adamw>;
static_assert(OptimizerSet<two_rates> && DescribesGroups<two_rates>);
static_assert(!DescribesGroups<mixed<muon, adamw>> && !DescribesGroups<adamw>);
static_assert(std::is_same_v<two_rates, decltype(parameter_groups{for_names("*", adamw{}),
                                                                  for_names("*", muon{}),
                                                                  for_rest(adamw{})})>);

two_rates routers_apart(double router_rate = 3e-3, double rest_rate = 1e-3) {
  return parameter_groups{
      for_names("*.router", adamw{.learning_rate = router_rate, .weight_decay = 0.1}),
      for_role(tensor_role::matrix, muon{.weight_decay = 0.2}),
      for_rest(adamw{.learning_rate = rest_rate, .weight_decay = 0})};
}

model_spec small_mixture() {
  model_spec spec;
  spec.unit("embedding").elementwise("tokens", {11, 4});
  spec.unit("moe").matrix("router", 3, 4).stack("experts", 3, 5, 4).vector("gain", 4);
  spec.unit("head").tied("router", "embedding.tokens");
  return spec;
}

template <class Groups>
std::string refusal(const model_spec& spec, const Groups& groups) {
  try {
    (void)make_plan(spec, 2, owner_placement{}, groups);
  } catch (const spec_error& refused) {
    return refused.what();
  }
  return "accepted";
}

// Trains small_mixture on two ranks with this gradient for every element of rank 0, and zero on the
// other; every parameter starts at 1.
std::map<std::string, std::vector<float>> trained(float gradient,
                                                  const std::vector<double>& scales) {
  std::map<std::string, std::vector<float>> result;
  thread_world{2}.run([&](auto comm) {
    sharded_model model{small_mixture(), comm, owner_placement{}, routers_apart()};
    model.initialize([](const tensor_spec&, std::span<float> values, index_t) {
      std::fill(values.begin(), values.end(), 1.0f);
    });
    for (const double scale : scales) {
      for (const std::size_t unit : model.backward_order()) {
        const auto gradients = model.gradients(unit);
        gradients.zero();
        if (comm.rank() == 0) {
          for (std::size_t i = 0; i < model.plan().spec.units()[unit].tensors.size(); ++i) {
            for (float& g : gradients[i].flat()) g = gradient;
          }
        }
        gradients.reduce();
      }
      model.step(scale);
    }
    auto parameters = toy::read_parameters(model);
    if (comm.rank() == 0) result = std::move(parameters);
  });
  return result;
}

}  // namespace

TEST_CASE("patterns fit whole names") {
  const auto fits = [](std::string_view pattern, std::string_view name) {
    return detail::matches_glob(pattern, name);
  };
  CHECK(fits("a.b", "a.b"));
  CHECK(!fits("a.b", "a.bc"));
  CHECK(!fits("a.bc", "a.b"));
  CHECK(!fits("b", "a.b"));
  CHECK(!fits("a?b", "ab"));
  CHECK(fits("a?b", "a.b"));
  CHECK(fits("*", ""));
  CHECK(fits("*", "a.b"));
  CHECK(fits("", ""));
  CHECK(!fits("", "a"));
  CHECK(!fits("?", ""));
  CHECK(fits("*.router", "block.3.router"));
  CHECK(!fits("*.router", "block.3.router.bias"));
  CHECK(!fits("*.router", "router"));
  CHECK(fits("block.*.mlp.*", "block.12.mlp.up"));
  CHECK(!fits("block.?.up", "block.12.up"));
  CHECK(fits("a**b", "ab"));
  CHECK(fits("*ab", "aab"));
  CHECK(fits("*a?c*", "xabxabcx"));
  CHECK(fits("a*", "a"));
  CHECK(!fits("*[ab]", "a"));
}

TEST_CASE("a pattern of many stars on a long name is answered at once") {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  CHECK(!detail::matches_glob(pattern + "b", std::string(20000, 'a')));
  CHECK(detail::matches_glob(pattern, std::string(20000, 'a')));
}

TEST_CASE("the first group that takes a tensor has it") {
  model_spec spec;
  spec.unit("embedding").elementwise("tokens", {9, 4});
  spec.unit("block").matrix("up", 4, 4).matrix("router", 2, 4).vector("gain", 4);
  const parameter_groups groups{
      for_names("*.router", adamw{.learning_rate = 1}),
      for_role(tensor_role::matrix, muon{.learning_rate = 2}),
      for_tensors(
          "tables", [](const tensor_spec& tensor) { return tensor.extents.size() == 2; },
          adamw{.learning_rate = 3}),
      for_rest(adamw{.learning_rate = 4})};
  std::vector<std::size_t> routes;
  for (const tensor_spec& tensor : spec.tensors()) routes.push_back(groups.route(tensor));
  CHECK(routes == std::vector<std::size_t>{2, 1, 0, 3});
  CHECK(std::get<1>(groups.members()).learning_rate == 2);
  CHECK(std::get<2>(groups.members()).learning_rate == 3);
  CHECK(make_plan(spec, 2, owner_placement{}, groups).tensors[2].optimizer == 0);
}

TEST_CASE("plans tell groups of one optimizer apart") {
  const plan p = make_plan(small_mixture(), 2, owner_placement{}, routers_apart());
  CHECK(p.optimizers ==
        std::vector<std::string>{"adamw (*.router)", "muon (matrix)", "adamw (rest)"});
  CHECK(to_text(p).find("optimizer adamw (*.router)\n") != std::string::npos);
  CHECK(to_text(parse_plan(to_text(p))) == to_text(p));
  CHECK(describe(p).find("adamw (*.router)") != std::string::npos);
}

TEST_CASE("a tensor that no group takes is refused with a cure, unless it is frozen") {
  CHECK(refusal(small_mixture(), parameter_groups{for_role(tensor_role::matrix, muon{}),
                                                  for_names("embedding.*", adamw{})}) ==
        "tensor 'moe.gain' has no optimizer: add a group that takes it, such as "
        "mfsdp::for_rest(optimizer), or freeze it");
  model_spec frozen;
  frozen.unit("u").matrix("m", 3, 4).vector("v", 3, {.frozen = true});
  CHECK(refusal(frozen, parameter_groups{for_role(tensor_role::matrix, muon{})}) == "accepted");
}

TEST_CASE("a group of names that receives no tensor is refused") {
  const auto with = [](auto... first) {
    return refusal(
        small_mixture(),
        parameter_groups{first..., for_role(tensor_role::matrix, muon{}), for_rest(adamw{})});
  };
  CHECK(with(for_names("*.ruter", adamw{})) ==
        "optimizer 'adamw (*.ruter)' receives no tensor: none fits, or groups before it take "
        "all that do");
  CHECK(with(for_names("*.experts", muon{}), for_names("moe.exp*", muon{})) ==
        "optimizer 'muon (moe.exp*)' receives no tensor: none fits, or groups before it take "
        "all that do");
  const auto none = [](const tensor_spec&) { return false; };
  CHECK(
      with(for_tensors("nothing at all", none, adamw{})).starts_with("optimizer 'adamw (nothing"));
  // A second name is no name for a group.
  CHECK(with(for_names("head.*", adamw{})).starts_with("optimizer 'adamw (head.*)'"));
}

TEST_CASE("groups of roles and of the rest may be empty, and a group may be frozen") {
  model_spec matrices;
  matrices.unit("u").matrix("m", 3, 4).matrix("lora", 3, 4, {.frozen = true});
  CHECK(refusal(matrices, parameter_groups{for_names("*.lora", adamw{}),
                                           for_role(tensor_role::vector, adamw{}),
                                           for_role(tensor_role::matrix, muon{}),
                                           for_rest(adamw{})}) == "accepted");
  CHECK(refusal(matrices, parameter_groups{for_names("*.lora", muon{}), for_rest(muon{})}) ==
        "optimizer 'muon (*.lora)' updates whole matrices, but the model has no trainable matrix "
        "for it");
}

TEST_CASE("labels are one line of text") {
  const auto all = [](const tensor_spec&) { return true; };
  CHECK_NOTHROW((void)for_tensors("two words", all, adamw{}));
  CHECK_THROWS_AS((void)for_tensors("", all, adamw{}), spec_error);
  CHECK_THROWS_AS((void)for_tensors("two\nlines", all, adamw{}), spec_error);
  CHECK_THROWS_AS((void)for_names("", adamw{}), spec_error);
}

TEST_CASE("tied tensors are routed once, by the name they were declared with") {
  const plan p = make_plan(small_mixture(), 2, owner_placement{}, routers_apart());
  const auto table = p.spec.find_tensor("head.router");
  REQUIRE(table == p.spec.find_tensor("embedding.tokens"));
  CHECK(p.tensors[*table].optimizer == 2);
  CHECK(std::count_if(p.items.begin(), p.items.end(),
                      [&](const placement_item& item) { return item.tensor == *table; }) == 1);
}

TEST_CASE("the rate of a group survives a schedule") {
  // The first step of Adam moves every element by the rate, whatever the gradient.
  for (const double scale : {1.0, 0.25}) {
    CAPTURE(scale);
    const auto parameters = trained(5.0f, {scale});
    const double decayed = 1 - 3e-3 * scale * 0.1;
    for (const float w : parameters.at("moe.router")) {
      CHECK(w == doctest::Approx(decayed - 3e-3 * scale).epsilon(1e-6));
    }
    for (const float w : parameters.at("moe.gain")) {
      CHECK(w == doctest::Approx(1 - 1e-3 * scale).epsilon(1e-6));
    }
    for (const float w : parameters.at("embedding.tokens")) {
      CHECK(w == doctest::Approx(1 - 1e-3 * scale).epsilon(1e-6));
    }
  }
}

TEST_CASE("options of a group apply once in each step, to its own tensors") {
  // With a gradient of zero only the decay of each group is left.
  const auto parameters = trained(0.0f, {1, 0.5, 0});
  for (const float w : parameters.at("moe.router")) {
    CHECK(w == doctest::Approx((1 - 3e-3 * 0.1) * (1 - 1.5e-3 * 0.1)).epsilon(1e-7));
  }
  for (const float w : parameters.at("moe.experts")) {
    CHECK(w == doctest::Approx((1 - 0.02 * 0.2) * (1 - 0.01 * 0.2)).epsilon(1e-7));
  }
  for (const float w : parameters.at("moe.gain")) CHECK(w == 1.0f);
}

TEST_CASE("matrices excluded from the matrix optimizer train as a plain loop with their own rate") {
  const parameter_groups groups{for_names("*.up", adamw{.learning_rate = 7e-3}),
                                for_role(tensor_role::matrix, muon{.weight_decay = 0.1}),
                                for_rest(adamw{.learning_rate = 3e-3})};
  const toy::settings how{.ranks = 3};
  const toy::outcome grouped = toy::run_plain(toy::odd_spec(), groups, how);
  CHECK(toy::run_sharded(toy::odd_spec(), owner_placement{}, groups, how) == grouped);

  // Different from one rate for all, in these matrices from the first step on.
  const toy::outcome plain = toy::run_plain(toy::odd_spec(), toy::optimizers(), how);
  CHECK(grouped.parameters.at("block.0.up") != plain.parameters.at("block.0.up"));
}

TEST_CASE("options and patterns of every group are compared between ranks") {
  const auto run = [](const two_rates& of_rank_0, const two_rates& of_rank_1) {
    thread_world{2}.run([&](auto comm) {
      sharded_model model{small_mixture(), comm, owner_placement{},
                          comm.rank() == 0 ? of_rank_0 : of_rank_1};
    });
  };
  CHECK_NOTHROW(run(routers_apart(), routers_apart()));
  CHECK_THROWS_AS(run(routers_apart(), routers_apart(4e-3)), plan_error);
  CHECK_THROWS_AS(run(routers_apart(), routers_apart(3e-3, 2e-3)), plan_error);
  CHECK_THROWS_AS(run(routers_apart(),
                      parameter_groups{for_names("moe.router",
                                                 adamw{.learning_rate = 3e-3, .weight_decay = 0.1}),
                                       for_role(tensor_role::matrix, muon{.weight_decay = 0.2}),
                                       for_rest(adamw{.weight_decay = 0})}),
                  plan_error);
}

}  // namespace parameter_groups_test
