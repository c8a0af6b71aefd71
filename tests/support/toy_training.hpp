// A model of every kind of tensor, a made-up loss whose gradient depends on the parameters, the
// rank and the micro-batch, and two ways to train it: through the runtime, and by a plain loop that
// uses nothing of the runtime.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "mfsdp/mfsdp.hpp"

namespace toy {

using mfsdp::index_t;

// Fused, frozen, tied, tiny and empty tensors; sizes that are no multiple of anything.
inline mfsdp::model_spec odd_spec() {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("tokens", {61, 37}).vector("scale", 1);
  for (int layer = 0; layer < 3; ++layer) {
    spec.unit("block." + std::to_string(layer))
        .vector("norm", 37)
        .matrix("qkv", 3 * 37, 37, {.row_groups = 3})
        .matrix("up", 53, 37)
        .matrix("down", 37, 53, {.frozen = layer == 1})
        .vector("empty", 0);
  }
  spec.unit("head").vector("norm", 37).tied("output", "embedding.tokens");
  return spec;
}

inline mfsdp::mixed<mfsdp::muon, mfsdp::adamw> optimizers() {
  return {mfsdp::muon{.weight_decay = 0.1}, mfsdp::adamw{.learning_rate = 3e-3}};
}

struct settings {
  int ranks = 2;     // of all replicas together
  int replicas = 1;  // for run_plain; run_sharded is given a mesh
  int steps = 3;
  int micro_batches = 2;
  double max_norm = 0.5;  // 0: no clipping
  mfsdp::model_options options{};
};

// What a run leaves behind; equal runs have equal bits.
struct outcome {
  std::vector<double> losses;                            // by step and rank
  std::vector<double> norms;                             // by step
  std::map<std::string, std::vector<float>> parameters;  // by tensor, at the end

  friend bool operator==(const outcome&, const outcome&) = default;
};

inline float initial_value(const mfsdp::tensor_spec& tensor, index_t i) {
  return 0.2f * std::sin(0.37f * static_cast<float>(i) + static_cast<float>(tensor.name.size()));
}

inline void initialize(const mfsdp::tensor_spec& tensor, std::span<float> values, index_t first) {
  for (std::size_t k = 0; k < values.size(); ++k) {
    values[k] = initial_value(tensor, first + static_cast<index_t>(k));
  }
}

// One element's part of the loss and its derivative.
inline float derivative(float weight, std::size_t i, std::size_t position, int rank, int step,
                        int micro) {
  return weight * (1.0f + 0.3f * static_cast<float>(rank)) +
         0.05f * std::sin(1.3f * static_cast<float>(i) + static_cast<float>(position) +
                          0.7f * static_cast<float>(rank + 2 * step + 5 * micro));
}

template <class T>
double loss_of(std::span<const T> weights) {
  double sum = 0;
  for (const T w : weights) sum += static_cast<double>(w) * static_cast<double>(w);
  return sum;
}

// One rank's run through the runtime. `losses` gets this rank's loss of each step.
template <class Model>
void train(Model& model, const settings& how, std::vector<double>& losses,
           std::vector<double>& norms) {
  const auto& units = model.plan().spec.units();
  for (int step = 0; step < how.steps; ++step) {
    double loss = 0;
    for (int micro = 0; micro < how.micro_batches; ++micro) {
      for (const std::size_t unit : model.forward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::forward);
        for (std::size_t i = 0; i < units[unit].tensors.size(); ++i) {
          loss += loss_of(weights[i].flat());
        }
      }
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        for (std::size_t i = 0; i < units[unit].tensors.size(); ++i) {
          const auto gradient = gradients[i];
          for (std::size_t k = 0; k < gradient.flat().size(); ++k) {
            auto& element = gradient.flat()[k];
            const std::remove_reference_t<decltype(element)> d(derivative(
                static_cast<float>(weights[i].flat()[k]), k, i, model.rank(), step, micro));
            element = gradient.accumulate ? element + d : d;
          }
        }
        gradients.reduce();
      }
    }
    losses.push_back(loss);
    if (how.max_norm > 0) norms.push_back(model.clip(how.max_norm));
    model.step(1.0f / static_cast<float>(step + 1));
  }
}

// A backward whose gradients are zero.
template <class Model>
void reduce_zeros(Model& model) {
  for (const std::size_t unit : model.backward_order()) {
    const auto gradients = model.gradients(unit);
    gradients.zero();
    gradients.reduce();
  }
}

// Every parameter, whole, read by an evaluation pass.
template <class Model>
std::map<std::string, std::vector<float>> read_parameters(Model& model) {
  std::map<std::string, std::vector<float>> all;
  const mfsdp::model_spec& spec = model.plan().spec;
  for (const std::size_t unit : model.forward_order()) {
    const auto weights = model.acquire(unit, mfsdp::pass::evaluate);
    for (std::size_t i = 0; i < spec.units()[unit].tensors.size(); ++i) {
      std::vector<float>& values = all[spec.tensors()[spec.units()[unit].tensors[i].tensor].name];
      values.clear();
      for (const auto w : weights[i].flat()) values.push_back(static_cast<float>(w));
    }
  }
  return all;
}

// Trains on a thread_world; `inspect(model)` runs on every rank at the end, `axes_of(comm)` at the
// start.
template <class Placement, class Optimizers, class Inspect, class Precision = mfsdp::precision<>,
          class Axes = std::identity>
outcome run_sharded(const mfsdp::model_spec& spec, Placement placement, Optimizers rules,
                    const settings& how, Inspect&& inspect, Precision types = {},
                    Axes axes_of = {}) {
  outcome result;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(how.ranks));
  mfsdp::thread_world{how.ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, axes_of(comm), placement, rules, types, how.options};
    model.initialize(initialize);
    std::vector<double> norms;
    train(model, how, losses[static_cast<std::size_t>(comm.rank())], norms);
    auto parameters = read_parameters(model);
    inspect(model);
    if (comm.rank() == 0) {
      result.norms = norms;
      result.parameters = std::move(parameters);
    }
  });
  for (std::size_t step = 0; step < losses.front().size(); ++step) {
    for (const auto& of_rank : losses) result.losses.push_back(of_rank[step]);
  }
  return result;
}

template <class Placement, class Optimizers>
outcome run_sharded(const mfsdp::model_spec& spec, Placement placement, Optimizers rules,
                    const settings& how) {
  return run_sharded(spec, placement, rules, how, [](auto&) {});
}

// What a rule of the plain loops updates at a time: a matrix of a tensor, or another tensor whole.
struct plain_part {
  std::size_t tensor;
  std::size_t item;
  std::size_t offset;
  mfsdp::matrix_shape shape;
};

inline std::vector<plain_part> plain_parts(const mfsdp::model_spec& spec) {
  std::vector<plain_part> parts;
  std::size_t items = 0;
  for (std::size_t t = 0; t < spec.tensors().size(); ++t) {
    const mfsdp::tensor_spec& tensor = spec.tensors()[t];
    const bool matrix = tensor.role == mfsdp::tensor_role::matrix;
    const index_t matrices = tensor.matrices();
    if (matrices == 0) continue;  // a stack of none
    const mfsdp::matrix_shape shape =
        matrix ? mfsdp::matrix_shape{tensor.shape().rows / matrices, tensor.shape().cols}
               : mfsdp::matrix_shape{1, tensor.elements()};
    for (index_t i = 0; i < matrices; ++i, ++items) {
      if (tensor.options.frozen || tensor.elements() == 0) continue;
      parts.push_back({t, items, static_cast<std::size_t>(i * shape.elements()), shape});
    }
  }
  return parts;
}

// What storage in T makes of a number.
template <class T>
float stored(float value) {
  return static_cast<float>(static_cast<T>(value));
}

// An updated value on its way to storage in T.
template <class T>
float written(float value, const mfsdp::rounding_stream& stream, std::size_t i) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const auto random = mfsdp::rounding_bits(stream.key(), static_cast<index_t>(i));
    return static_cast<float>(T::stochastic(value, random));
  }
}

// The reference: full copies, a loop over ranks, sums in rank order, whole-tensor updates; replica
// by replica, which are then summed in order. Floats throughout, each with a value that the
// precision can store.
template <class Precision = mfsdp::precision<>, class Optimizers>
outcome run_plain(const mfsdp::model_spec& spec, const Optimizers& rules, const settings& how) {
  struct part : plain_part {
    std::vector<std::vector<float>> states{};
  };
  using compute = typename Precision::compute;
  using gradient = typename Precision::gradient;
  using reduce = typename Precision::reduce;
  using master = typename Precision::master;
  mfsdp::cpu_backend backend;
  const auto& tensors = spec.tensors();
  std::vector<std::vector<float>> weights;
  std::vector<part> parts;
  const auto with_rule = [&](std::size_t t, auto f) {
    mfsdp::detail::with_member(mfsdp::optimizer_members(rules),
                               mfsdp::optimizer_route(rules, tensors[t]), f);
  };
  for (const mfsdp::tensor_spec& tensor : tensors) {
    weights.emplace_back(static_cast<std::size_t>(tensor.elements()));
    initialize(tensor, weights.back(), 0);
    for (float& w : weights.back()) w = stored<master>(w);
  }
  for (const plain_part& each : plain_parts(spec)) {
    part& p = parts.emplace_back(part{each});
    with_rule(p.tensor, [&](const auto& rule) {
      for (const mfsdp::state_spec& state : rule.states(p.shape)) {
        p.states.emplace_back(static_cast<std::size_t>(state.elements), 0.0f);
      }
    });
  }

  // What a trainer sees of a tensor.
  const auto read = [&](std::size_t tensor) {
    std::vector<float> values = weights[tensor];
    for (float& value : values) value = stored<compute>(value);
    return values;
  };

  // The sum of squares of a part: double, by blocks of 1024, in order.
  const auto sum_of_squares = [](std::span<const float> x) {
    double sum = 0;
    for (std::size_t from = 0; from < x.size(); from += 1024) {
      double lanes[8] = {};
      const auto block = x.subspan(from, std::min<std::size_t>(1024, x.size() - from));
      for (std::size_t i = 0; i < block.size(); ++i) {
        lanes[i % 8] += static_cast<double>(block[i]) * block[i];
      }
      sum += ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
    return sum;
  };

  outcome result;
  for (int step = 0; step < how.steps; ++step) {
    std::vector<double> losses(static_cast<std::size_t>(how.ranks), 0.0);
    using gradients = std::vector<std::vector<float>>;
    const auto add = [](gradients& sum, gradients&& term) {
      if (sum.empty()) {
        sum = std::move(term);
        return;
      }
      for (std::size_t t = 0; t < sum.size(); ++t) {
        for (std::size_t k = 0; k < sum[t].size(); ++k) {
          sum[t][k] = stored<reduce>(sum[t][k] + term[t][k]);
        }
      }
    };
    const int shard_ranks = how.ranks / how.replicas;
    gradients total;
    for (int replica = 0; replica < how.replicas; ++replica) {
      gradients of_replica;
      for (int micro = 0; micro < how.micro_batches; ++micro) {
        gradients sum;
        for (int rank = replica * shard_ranks; rank < (replica + 1) * shard_ranks; ++rank) {
          gradients own(tensors.size());
          for (const auto& unit : spec.units()) {
            for (const auto& reference : unit.tensors) {
              losses[static_cast<std::size_t>(rank)] +=
                  loss_of(std::span<const float>(read(reference.tensor)));
            }
          }
          for (std::size_t u = spec.units().size(); u-- > 0;) {
            const auto& references = spec.units()[u].tensors;
            for (std::size_t i = 0; i < references.size(); ++i) {
              const auto w = read(references[i].tensor);
              auto& g = own[references[i].tensor];
              const bool first = g.empty();
              g.resize(w.size());
              for (std::size_t k = 0; k < w.size(); ++k) {
                const float d = stored<gradient>(derivative(w[k], k, i, rank, step, micro));
                g[k] = first ? d : stored<gradient>(g[k] + d);
              }
            }
          }
          add(sum, std::move(own));
        }
        add(of_replica, std::move(sum));
      }
      add(total, std::move(of_replica));
    }
    result.losses.insert(result.losses.end(), losses.begin(), losses.end());

    const auto values_of = [](std::vector<float>& all, const part& p) {
      return std::span(all).subspan(p.offset, static_cast<std::size_t>(p.shape.elements()));
    };
    if (how.max_norm > 0) {
      double squares = 0;
      for (const part& p : parts) squares += sum_of_squares(values_of(total[p.tensor], p));
      const double norm = std::sqrt(squares);
      result.norms.push_back(norm);
      const double factor = how.max_norm / (norm + 1e-6);
      if (factor < 1) {
        for (const part& p : parts) {
          for (float& g : values_of(total[p.tensor], p)) {
            g = stored<reduce>(g * static_cast<float>(factor));
          }
        }
      }
    }

    for (part& p : parts) {
      with_rule(p.tensor, [&](const auto& rule) {
        std::vector<float> workspace(static_cast<std::size_t>(rule.workspace_size(p.shape)) + 16);
        const auto misaligned = reinterpret_cast<std::uintptr_t>(workspace.data()) / 4 % 16;
        mfsdp::state_spans<std::remove_cvref_t<decltype(rule)>, float> states;
        for (std::size_t k = 0; k < states.size(); ++k) states[k] = p.states[k];
        rule.update(
            backend, states,
            mfsdp::matrix_view<float>(values_of(weights[p.tensor], p).data(), p.shape),
            mfsdp::matrix_view<const float>(values_of(total[p.tensor], p).data(), p.shape),
            mfsdp::update_context<float>{step + 1, 1.0f / static_cast<float>(step + 1),
                                         std::span(workspace).subspan((16 - misaligned) % 16)});
        const auto write = [&]<class T>(std::span<float> values, std::size_t value, T) {
          const mfsdp::rounding_stream stream{how.options.rounding_seed, p.item, value, step + 1};
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = written<T>(values[i], stream, i);
          }
        };
        write(values_of(weights[p.tensor], p), 0, master{});
        for (std::size_t k = 0; k < states.size(); ++k) {
          if (rule.states(p.shape)[k].exact) continue;
          write(p.states[k], k + 1, typename Precision::state{});
        }
      });
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) result.parameters[tensors[t].name] = read(t);
  return result;
}

}  // namespace toy
