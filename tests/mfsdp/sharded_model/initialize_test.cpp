// A model that is initialized again is a new one, to the last bit.
#include <doctest/doctest.h>

#include "support/local_momentum.hpp"
#include "support/mean_gradient.hpp"
#include "support/site_training.hpp"

namespace initialize_test {

using namespace mfsdp;
using mfsdp_test::local_momentum, mfsdp_test::mean_gradient;

namespace {

// What a second run on one model and the run on another one end with, on every rank.
template <class Axes, class Rules, class Train, class Precision = precision<>>
void check_begins_anew(Axes axes, const Rules& rules, Train train, Precision types = {}) {
  sharded_model used{toy::odd_spec(), axes, owner_placement{}, rules, types};
  sharded_model fresh{toy::odd_spec(), axes, owner_placement{}, rules, types};
  used.initialize(toy::initialize);
  train(used);
  // In the middle of a step.
  const auto gradients = used.gradients(used.backward_order().front());
  gradients.zero();
  gradients.reduce();
  const auto before = toy::read_parameters(used);
  for (auto* model : {&used, &fresh}) {
    model->initialize(toy::initialize);
    train(*model);
  }
  CHECK(toy::read_parameters(used) == toy::read_parameters(fresh));
  CHECK(toy::read_parameters(used) == before);
  CHECK(used.step().step == fresh.step().step);
}

}  // namespace

TEST_CASE("initialize begins anew: states, counts, gradients and rounding") {
  thread_world{2}.run([](auto comm) {
    const auto train = [](auto& model) {
      std::vector<double> ignored;
      toy::train(model, {}, ignored, ignored);
      toy::reduce_zeros(model);
    };
    const auto twice = [&](auto&&... what) { check_begins_anew(mesh{comm}, what...); };
    twice(toy::optimizers(), train);
    twice(toy::optimizers(), train, precision<bfloat16, bfloat16, float, bfloat16, bfloat16>{});
  });
}

TEST_CASE("and so do the sites that do it together") {
  thread_world{3}.run([](auto comm) {
    const toy::site_settings how{.ranks = {1, 2}, .parts = {2, 2}};
    const auto train = [&](auto& model) {
      toy::train_site(model, how);
      toy::reduce_zeros(model);
    };
    const auto axes = make_sites(comm, how.ranks);
    check_begins_anew(axes, mixed{local_momentum<true>{}, local_momentum<false>{}}, train);
    check_begins_anew(axes, mixed{mean_gradient<true>{}, mean_gradient<false>{}}, train);
  });
}

}  // namespace initialize_test
