#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "support/emulated_gpus.hpp"
#include "support/toy_training.hpp"

namespace nccl_device_model_test {

using namespace mfsdp;
using mfsdp_test::backend_of;
using mfsdp_test::emulated_gpus;
using mfsdp_test::tight_options;

namespace {

// toy::train for memory that the host need not be able to touch: weights and gradients pass through
// copies. Returns every parameter at the end.
template <class Model, class Memory>
std::map<std::string, std::vector<float>> train_through_copies(Model& model, const Memory& memory,
                                                               std::vector<double>& norms) {
  const model_spec& spec = model.plan().spec;
  const auto on_host = [&](auto view) {
    std::vector<float> values(view.flat().size());
    memory.copy(std::span<const float>(view.flat()), std::span(values));
    return values;
  };
  for (int step = 0; step < 3; ++step) {
    for (const std::size_t unit : model.forward_order()) {
      (void)model.acquire(unit, pass::forward);
    }
    for (const std::size_t unit : model.backward_order()) {
      const auto weights = model.acquire(unit, pass::backward);
      const auto gradients = model.gradients(unit);
      for (std::size_t i = 0; i < spec.units()[unit].tensors.size(); ++i) {
        if (gradients[i].flat().empty()) continue;
        const std::vector<float> weight = on_host(weights[i]);
        std::vector<float> gradient =
            gradients[i].accumulate ? on_host(gradients[i]) : std::vector<float>(weight.size());
        for (std::size_t k = 0; k < weight.size(); ++k) {
          gradient[k] += toy::derivative(weight[k], k, i, model.rank(), step, 0);
        }
        memory.copy(std::span<const float>(gradient), gradients[i].flat());
      }
      gradients.reduce();
    }
    norms.push_back(model.clip(0.5));
    model.step(1.0f / static_cast<float>(step + 1));
  }
  std::map<std::string, std::vector<float>> all;
  for (const std::size_t unit : model.forward_order()) {
    const auto weights = model.acquire(unit, pass::evaluate);
    for (std::size_t i = 0; i < spec.units()[unit].tensors.size(); ++i) {
      all[spec.tensors()[spec.units()[unit].tensors[i].tensor].name] = on_host(weights[i]);
    }
  }
  return all;
}

template <class Model, class Memory>
void train_and_keep(Model& model, const Memory& memory, toy::outcome& result) {
  std::vector<double> norms;
  model.initialize(toy::initialize);
  auto parameters = train_through_copies(model, memory, norms);
  if (model.rank() != 0) return;
  result.norms = std::move(norms);
  result.parameters = std::move(parameters);
}

}  // namespace

TEST_CASE("a model on devices trains over NCCL as on the host over threads") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    toy::outcome expected;
    thread_world(ranks).run([&](thread_collective comm) {
      const eigen_backend memory;
      sharded_model model{toy::odd_spec(), comm,  owner_placement{}, toy::optimizers(),
                          model_options{}, memory};
      train_and_keep(model, memory, expected);
    });
    toy::outcome result;
    emulated_gpus world(ranks, tight_options());
    world.run([&](nccl_collective comm) {
      const cuda_backend memory = backend_of(comm);
      sharded_model model{toy::odd_spec(), comm,  owner_placement{}, toy::optimizers(),
                          model_options{}, memory};
      train_and_keep(model, memory, result);
    });
    REQUIRE(result.norms.size() == expected.norms.size());
    for (std::size_t i = 0; i < result.norms.size(); ++i) {
      CHECK(result.norms[i] == doctest::Approx(expected.norms[i]).epsilon(1e-5));
    }
    REQUIRE(result.parameters.size() == expected.parameters.size());
    for (const auto& [name, values] : expected.parameters) {
      CAPTURE(name);
      REQUIRE(result.parameters[name].size() == values.size());
      float largest = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(result.parameters[name][i] - values[i]));
      }
      CHECK(largest < 1e-4f);
    }
  }
}

}  // namespace nccl_device_model_test
