// The training run: the same function for every placement and optimizer, on one rank of a world.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "mfsdp/checkpoint.hpp"
#include "mfsdp/mfsdp.hpp"
#include "text.hpp"
#include "transformer.hpp"

namespace train_gpt {

struct settings {
  std::string placement = "owner";
  std::string optimizer = "muon";
  int steps = 500;     // of the learning-rate schedule
  int stop_after = 0;  // steps to take of it; 0: all
  int sequences = 32;  // of all ranks together, in a step
  transformer_shape shape{};
  std::uint64_t seed = 1;
  std::optional<double> matrix_rate{};  // on the hidden matrices; the optimizer's own if not given
  double elementwise_rate = 3e-3;       // AdamW's, on the rest or on everything
  double clip = 0;                      // global gradient norm; 0: no clipping
  int warmup = 20;
  int prefetch = 1;
  int validate_every = 50;
  int validation_windows = 512;  // at the end; a quarter of them on the way
  int sample = 0;                // characters to generate at the end
  std::string checkpoint{};      // folder of checkpoints; none if empty
  int save_every = 0;            // steps between them, and one at the end; 0: none
  bool resume = false;           // from the latest one, if there is any
};

struct validation_point {
  int step;
  double loss;
};

// What one rank holds and moves.
struct rank_account {
  mfsdp::index_t matrices = 0;
  mfsdp::memory_usage memory{};
  std::array<mfsdp::traffic, mfsdp::phases> moved{};
};

struct outcome {
  int first_step = 0;          // steps that were taken before
  std::vector<double> losses;  // of each step since, over all ranks, nats per byte
  std::vector<validation_point> validation;
  double train_seconds = 0;  // in training steps, validation not counted
  mfsdp::index_t resident_bytes_ideal = 0;
  std::vector<rank_account> ranks;
  std::string sample;
  std::string plan;

  [[nodiscard]] double final_validation() const { return validation.back().loss; }
};

// Called by rank 0 after each step and after each validation.
struct progress {
  std::function<void(int step, double loss, double seconds)> on_step = [](int, double, double) {};
  std::function<void(int step, double loss)> on_validation = [](int, double) {};
};

// Units in forward order: embedding, block.0, block.1, ..., head.
inline mfsdp::model_spec make_spec(const transformer_shape& shape) {
  const mfsdp::index_t width = shape.width;
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("tokens", {shape.vocabulary, width});
  for (int layer = 0; layer < shape.layers; ++layer) {
    spec.unit("block." + std::to_string(layer))
        .vector("norm1", width)
        .matrix("qkv", 3 * width, width, {.row_groups = 3})  // one product, three owners
        .matrix("out", width, width)
        .vector("norm2", width)
        .matrix("up", shape.mlp_width(), width)
        .matrix("down", width, shape.mlp_width());
  }
  spec.unit("head").vector("norm", width).elementwise("output", {shape.vocabulary, width});
  return spec;
}

namespace detail {

template <class Tensors, class Pointers>
Tensors tensors_of(const Pointers& p) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return Tensors{p[i]...};
  }(std::make_index_sequence<sizeof(Tensors) / sizeof(void*)>{});
}

// The accounts of all ranks, on every rank.
template <class Comm>
std::vector<rank_account> gather(Comm& comm, const rank_account& own) {
  using words = std::array<std::int64_t, sizeof(rank_account) / sizeof(std::int64_t)>;
  const words mine = std::bit_cast<words>(own);
  const auto count = std::ssize(mine);
  std::vector<mfsdp::piece> pieces;
  for (int r = 0; r < comm.size(); ++r) pieces.push_back({r, r * count, 0, count});
  std::vector<std::int64_t> all(pieces.size() * mine.size());
  const auto until = std::chrono::steady_clock::now() + mfsdp::model_options{}.timeout;
  auto request = comm.start_all_gather(std::span<const std::int64_t>(mine), std::span(all), pieces,
                                       "accounts");
  request.wait(until);
  request.drain(until);
  std::vector<rank_account> accounts;
  words one;
  for (auto at = all.begin(); at != all.end(); at += count) {
    std::copy_n(at, count, one.begin());
    accounts.push_back(std::bit_cast<rank_account>(one));
  }
  return accounts;
}

}  // namespace detail

// One rank's trainer. Nothing here keeps a parameter pointer between two units.
template <class Model>
class trainer {
 public:
  // `schedule` is the factor on all rates in step 1, 2, ...
  trainer(Model& model, const settings& how, const text& data,
          std::function<double(int)> schedule = {})
      : model_(model),
        how_(how),
        data_(data),
        schedule_(schedule ? std::move(schedule)
                           : mfsdp::cosine_schedule(
                                 {.steps = how.steps, .warmup = how.warmup, .floor = 0.1})),
        local_(how.sequences / model.plan().ranks),
        network_(how.shape, local_),
        inputs_(static_cast<std::size_t>(local_ * how.shape.context)),
        targets_(inputs_.size()) {}

  // Forward, backward and update on this step's windows; returns the loss over all ranks.
  double step(int step) {
    const auto length = static_cast<std::size_t>(how_.shape.context);
    for (int i = 0; i < local_; ++i) {
      const auto at = static_cast<std::size_t>(i) * length;
      training_window(data_.training(), how_.seed, static_cast<std::uint64_t>(step),
                      static_cast<std::uint64_t>(model_.rank() * local_ + i),
                      std::span(inputs_).subspan(at, length),
                      std::span(targets_).subspan(at, length));
    }
    const double count = static_cast<double>(how_.sequences) * how_.shape.context;
    const double loss = forward(mfsdp::pass::forward, 1 / count);
    backward();
    if (how_.clip > 0) model_.clip(how_.clip);
    model_.step(static_cast<float>(schedule_(step + 1)));
    return model_.sum(loss) / count;
  }

  // The mean loss on fixed windows of the held-out text, shared out over the ranks; of several
  // sites, each takes windows of its own.
  double validate(int windows, int site = 0, int sites = 1) {
    const auto length = static_cast<std::size_t>(how_.shape.context);
    const int batch = how_.sequences;
    const int batches = std::max(1, windows / batch);
    double loss = 0;
    for (int b = 0; b < batches; ++b) {
      for (int i = 0; i < local_; ++i) {
        const auto at = static_cast<std::size_t>(i) * length;
        const int window = (site * batches + b) * batch + model_.rank() * local_ + i;
        validation_window(data_.validation(), static_cast<std::size_t>(window),
                          static_cast<std::size_t>(sites * batches * batch),
                          std::span(inputs_).subspan(at, length),
                          std::span(targets_).subspan(at, length));
      }
      loss += forward(mfsdp::pass::evaluate, 1);
    }
    const double count = static_cast<double>(batches) * batch * how_.shape.context;
    return model_.sum(loss) / count;
  }

  // Continues a prompt on rank 0; the others only take part in the gathers.
  std::string generate(const std::string& prompt, int characters) {
    std::vector<std::uint8_t> tokens = data_.encode(prompt);
    transformer<float> single(how_.shape, 1);
    std::vector<float> logits(static_cast<std::size_t>(how_.shape.vocabulary));
    std::mt19937_64 random(how_.seed);
    const auto context = static_cast<std::size_t>(how_.shape.context);
    for (int i = 0; i < characters; ++i) {
      const auto window = std::span(tokens).last(std::min(tokens.size(), context));
      for (const std::size_t unit : model_.forward_order()) {
        const auto w = model_.acquire(unit, mfsdp::pass::evaluate);
        if (model_.rank() != 0) continue;
        if (unit == 0) {
          single.embed_forward(detail::tensors_of<embedding_parameters<float>>(w.pointers()),
                               window);
        } else if (unit <= static_cast<std::size_t>(how_.shape.layers)) {
          single.block_forward(static_cast<int>(unit) - 1,
                               detail::tensors_of<block_parameters<float>>(w.pointers()));
        } else {
          single.head_logits(detail::tensors_of<head_parameters<float>>(w.pointers()),
                             static_cast<int>(window.size()) - 1, logits);
        }
      }
      std::vector<double> weights;
      for (const float logit : logits) weights.push_back(std::exp(logit / 0.8));
      std::discrete_distribution<int> choose(weights.begin(), weights.end());
      tokens.push_back(static_cast<std::uint8_t>(choose(random)));
    }
    return data_.decode(tokens);
  }

 private:
  // The sum of losses of this rank's windows.
  double forward(mfsdp::pass why, double gradient_scale) {
    double loss = 0;
    for (const std::size_t unit : model_.forward_order()) {
      const auto w = model_.acquire(unit, why);
      if (unit == 0) {
        network_.embed_forward(detail::tensors_of<embedding_parameters<float>>(w.pointers()),
                               inputs_);
      } else if (unit <= static_cast<std::size_t>(how_.shape.layers)) {
        network_.block_forward(static_cast<int>(unit) - 1,
                               detail::tensors_of<block_parameters<float>>(w.pointers()));
      } else {
        loss = network_.head_loss(detail::tensors_of<head_parameters<float>>(w.pointers()),
                                  targets_, gradient_scale);
      }
    }
    return loss;
  }

  void backward() {
    for (const std::size_t unit : model_.backward_order()) {
      const auto w = model_.acquire(unit, mfsdp::pass::backward);
      const auto g = model_.gradients(unit);
      if (unit == 0) {
        network_.embed_backward(detail::tensors_of<embedding_gradients<float>>(g.pointers()));
      } else if (unit <= static_cast<std::size_t>(how_.shape.layers)) {
        network_.block_backward(static_cast<int>(unit) - 1,
                                detail::tensors_of<block_parameters<float>>(w.pointers()),
                                detail::tensors_of<block_gradients<float>>(g.pointers()));
      } else {
        network_.head_backward(detail::tensors_of<head_parameters<float>>(w.pointers()),
                               detail::tensors_of<head_gradients<float>>(g.pointers()));
      }
      g.reduce();
    }
  }

  Model& model_;
  const settings& how_;
  const text& data_;
  std::function<double(int)> schedule_;
  int local_;  // sequences of this rank
  transformer<float> network_;
  std::vector<std::uint8_t> inputs_;
  std::vector<std::uint8_t> targets_;
};

// What the rest of a run follows from, beside the model and the step: kept in its checkpoints.
inline std::string course_of(const settings& how) {
  return fmt::format(
      "seed {}, {} steps of {} sequences, warmup {}, {} at rate {}, AdamW at {}, clip {}", how.seed,
      how.steps, how.sequences, how.warmup, how.optimizer,
      how.matrix_rate ? fmt::format("{}", *how.matrix_rate) : "of its own", how.elementwise_rate,
      how.clip);
}

// Sets the model to its initial values or to the latest checkpoint; returns the steps taken.
// Errors: std::invalid_argument if that is of another run.
template <class Model>
int start(Model& model, const settings& how) {
  const bool there =
      !how.checkpoint.empty() && mfsdp::latest_checkpoint(model, how.checkpoint).has_value();
  if (there && !how.resume) {  // before any training, which save() would refuse to keep
    throw std::invalid_argument("'" + how.checkpoint +
                                "' has checkpoints already: go on from them with --resume, or name "
                                "another folder");
  }
  if (!there) {
    model.initialize(
        [&](const mfsdp::tensor_spec& tensor, std::span<float> values, mfsdp::index_t first) {
          const initial_values initial(how.shape, tensor.name, how.seed);
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(initial(static_cast<std::uint64_t>(first) + i));
          }
        });
    return 0;
  }
  const mfsdp::loaded at = mfsdp::load(model, how.checkpoint);
  if (at.trainer != course_of(how)) {
    throw std::invalid_argument("the run of " + at.path + " has " + at.trainer +
                                ", this one would have " + course_of(how));
  }
  if (model.rank() == 0) {
    for (const std::string& change : at.changed_options) fmt::print("changed: {}\n", change);
  }
  return static_cast<int>(at.step);
}

// Trains on all ranks of a world. Placement and rules are types here; choices.hpp has names for
// them. The outcome is rank 0's: where ranks are processes, it is empty on the others.
template <class World, class Placement, class Rules>
outcome train_as(World& world, const settings& how, const text& data, Placement placement,
                 Rules rules, const progress& report) {
  using clock = std::chrono::steady_clock;
  outcome result;
  world.run([&](auto comm) {
    mfsdp::sharded_model model{make_spec(how.shape), comm, placement, rules,
                               mfsdp::model_options{.prefetch = how.prefetch}};
    const int first_step = start(model, how);
    mfsdp::background_saver saver(how.checkpoint);

    trainer run(model, how, data);
    const bool speaks = comm.rank() == 0;
    double seconds = 0;
    const int steps = how.stop_after > 0 ? std::min(how.stop_after, how.steps) : how.steps;
    for (int step = first_step; step < steps; ++step) {
      const auto began = clock::now();
      const double loss = run.step(step);
      seconds += std::chrono::duration<double>(clock::now() - began).count();
      if (speaks) {
        result.losses.push_back(loss);
        report.on_step(step + 1, loss, seconds);
      }
      const bool last = step + 1 == steps;
      if (how.save_every > 0 && ((step + 1) % how.save_every == 0 || last)) {
        saver.save(model, {.trainer = course_of(how)});
      }
      saver.poll();
      if (how.validate_every > 0 && ((step + 1) % how.validate_every == 0 || last)) {
        const double validation = run.validate(how.validation_windows / (last ? 1 : 4));
        if (speaks) {
          result.validation.push_back({step + 1, validation});
          report.on_validation(step + 1, validation);
        }
      }
    }

    saver.wait();
    rank_account account;
    account.memory = model.memory_in_use();
    for (std::size_t p = 0; p < mfsdp::phases; ++p) {
      account.moved[p] = model.moved(static_cast<mfsdp::phase>(p));
    }
    const mfsdp::plan_loads loads = mfsdp::loads_of(model.plan());
    account.matrices = loads.matrices[static_cast<std::size_t>(comm.rank())];
    std::vector<rank_account> accounts = detail::gather(comm, account);
    if (how.sample > 0) {
      std::string sample = run.generate(data.decode(data.validation().first(16)), how.sample);
      if (speaks) result.sample = std::move(sample);
    }
    if (speaks) {
      result.first_step = first_step;
      result.ranks = std::move(accounts);
      result.train_seconds = seconds;
      result.resident_bytes_ideal = loads.resident_bytes_ideal;
      result.plan = mfsdp::describe(model.plan());
    }
  });
  return result;
}

}  // namespace train_gpt
