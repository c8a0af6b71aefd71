// A trainer that touches parameters and gradients through the model only: it works on any backend.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "support/remote_backend.hpp"
#include "support/toy_training.hpp"

namespace mfsdp_test {

struct host_training {
  int steps = 3;
  int micro_batches = 2;
  double max_norm = 0.5;  // 0: no clipping
};

// All that this rank holds, parameters and states, in order.
template <class Model>
std::vector<std::byte> bytes_held(Model& model) {
  std::vector<std::byte> all;
  model.persistence().for_each_held(
      [&]<class T>(const mfsdp::held_part&, std::span<const T> values) {
        std::vector<T> host(values.size());
        model.persistence().read(values, std::span(host));
        const auto bytes = std::as_bytes(std::span(host));
        all.insert(all.end(), bytes.begin(), bytes.end());
      });
  return all;
}

// Trains on; returns the norms and bytes_held.
template <class Model>
std::vector<std::byte> train_from_host(Model& model, const host_training& how) {
  std::vector<double> norms;
  for (int step = 0; step < how.steps; ++step) {
    for (int micro = 0; micro < how.micro_batches; ++micro) {
      for (const std::size_t unit : model.forward_order()) {
        (void)model.acquire(unit, mfsdp::pass::forward);
      }
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        const auto& tensors = model.plan().spec.units()[unit].tensors;
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          if (gradients[t].size() == 0) continue;
          const auto read = [&]<class T>(mfsdp::matrix_view<const T> of) {
            std::vector<T> host(static_cast<std::size_t>(of.size()));
            model.persistence().read(std::span<const T>(of.flat()), std::span(host));
            for (std::size_t i = 0; i < host.size(); ++i) {
              host[i] = T(toy::derivative(static_cast<float>(host[i]), i, t, model.rank(), step,
                                          micro + 3 * model.site()));
            }
            return host;
          };
          const auto values = read(weights[t]);
          gradients.put(tensors[t].name, std::span(values));
        }
        gradients.reduce();
      }
    }
    if (how.max_norm > 0) norms.push_back(model.clip(how.max_norm));
    model.step();
  }
  std::vector<std::byte> result = bytes_held(model);
  const auto bytes = std::as_bytes(std::span(norms));
  result.insert(result.begin(), bytes.begin(), bytes.end());
  return result;
}

// The same training on this many ranks in the memory of a backend: what each rank has then.
// `model_on(collective, backend)` constructs a rank's model.
template <class Memory, class ModelOn>
std::vector<std::vector<std::byte>> trained_in(int ranks, const host_training& how,
                                               const ModelOn& model_on) {
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(ranks));
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    auto model = model_on(remote_collective(comm), Memory{});
    model.initialize(toy::initialize);
    all[rank] = train_from_host(model, how);
  });
  return all;
}

}  // namespace mfsdp_test
