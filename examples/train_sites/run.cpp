// The only source file that compiles a model.
#include "run.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <string_view>

#include "lordo/lordo.hpp"
#include "mfsdp/mfsdp.hpp"
#include "train_gpt/training.hpp"

namespace train_sites {

outcome run(const settings& how, const text& data, const rules& chosen) {
  const int all = std::accumulate(how.ranks.begin(), how.ranks.end(), 0);
  if (how.sequences % how.sites() != 0 ||
      std::ranges::any_of(how.ranks, [&](int r) { return how.sequences / how.sites() % r != 0; })) {
    throw std::invalid_argument(
        fmt::format("{} sequences a step cannot be shared out evenly over {} sites", how.sequences,
                    how.sites()));
  }
  if (how.steps % how.period != 0 || how.period % exchanges_a_period != 0) {
    throw std::invalid_argument(fmt::format(
        "{} steps and a period of {}: a run ends with a meeting if the steps are a multiple of the "
        "period, and the period one of {}",
        how.steps, how.period, exchanges_a_period));
  }
  train_gpt::settings one{.steps = how.steps,
                          .sequences = how.sequences / how.sites(),
                          .shape = how.shape,
                          .warmup = std::min(how.warmup, how.steps / 4)};
  one.shape.vocabulary = data.vocabulary();
  const mfsdp::stable_decay_schedule schedule({.steps = one.steps, .warmup = one.warmup},
                                              static_cast<std::int64_t>(how.cooldown * how.steps));

  outcome result;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(how.sites()));
  std::vector<double> validation(losses.size());
  mfsdp::thread_world{all}.run([&](auto comm) {
    mfsdp::sharded_model model{train_gpt::make_spec(one.shape), mfsdp::make_sites(comm, how.ranks),
                               mfsdp::owner_placement{}, chosen};
    model.initialize(
        [&](const mfsdp::tensor_spec& tensor, std::span<float> values, mfsdp::index_t first) {
          const train_gpt::initial_values initial(one.shape, tensor.name, how.seed);
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(initial(static_cast<std::uint64_t>(first) + i));
          }
        });
    train_gpt::settings mine = one;
    mine.seed = how.seed + 1000 * static_cast<std::uint64_t>(model.site());
    const text part = data.dealt(model.site(), model.sites());
    train_gpt::trainer trainer(model, mine, part, schedule);

    const auto site = static_cast<std::size_t>(model.site());
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < how.steps; ++step) {
      const double loss = trainer.step(step);
      if (model.rank() == 0) losses[site].push_back(loss);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double loss =
        trainer.validate(how.validation_windows / model.sites(), model.site(), model.sites());
    if (model.rank() == 0) validation[site] = loss;

    if (comm.rank() == 0) {
      result.seconds = seconds;
      result.bases = lordo::describe_bases(model);
      for (const auto& tensor : model.plan().spec.tensors()) {
        result.parameters += tensor.elements();
        if (tensor.role == mfsdp::tensor_role::matrix)
          result.matrix_parameters += tensor.elements();
      }
    }
    if (model.site() != 0) return;
    // The ranks of the first site, one after the other.
    for (int rank = 0; rank < model.ranks(); ++rank) {
      (void)model.sum(0);
      if (rank != model.rank()) continue;
      const double others = 4.0 * (model.sites() - 1);
      result.sent += static_cast<double>(model.moved(mfsdp::phase::sync).sent) / others;
      result.sent_in_step += static_cast<double>(model.moved(mfsdp::phase::step).sent) / others;
      model.persistence().for_each_held([&](const mfsdp::held_part& held, auto values) {
        const mfsdp::model_array& array = model.persistence().arrays()[held.array];
        if (!array.is_state() || model.plan().items[held.item].divisible) return;
        result.states[std::string(array.state)] += std::ssize(values);
      });
    }
    (void)model.sum(0);
  });
  for (int step = 0; step < how.steps; step += how.curve_every) {
    double sum = 0;
    for (const auto& of_site : losses) {
      for (int i = step; i < std::min(step + how.curve_every, how.steps); ++i) {
        sum += of_site[static_cast<std::size_t>(i)];
      }
    }
    const int count = std::min(how.curve_every, how.steps - step) * how.sites();
    result.losses.emplace_back(step + how.curve_every / 2, sum / count);
  }
  for (const double loss : validation) result.validation += loss / how.sites();
  return result;
}

}  // namespace train_sites
