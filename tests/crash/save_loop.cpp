// What crash_test.sh starts and kills.
//
//   save_loop train FOLDER STEPS   goes on from the latest checkpoint in FOLDER, if there is one,
//                                  until STEPS, and saves after every step; prints each step that
//                                  is saved
//   save_loop behind FOLDER STEPS  the same by a background_saver, which writes while the next
//                                  step is taken: completed by poll(), by wait(), or by the next
//                                  save()
//   save_loop check FOLDER LEAST   every checkpoint there has the values of a run that nothing ever
//                                  interrupted, at another number of ranks; the latest is of step
//                                  LEAST or a later one
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "mfsdp/checkpoint.hpp"
#include "mfsdp/mfsdp.hpp"

namespace {

mfsdp::model_spec small_model() {
  mfsdp::model_spec spec;
  spec.unit("a").matrix("up", 96, 64).matrix("down", 64, 96).vector("norm", 64);
  spec.unit("b").matrix("out", 128, 64).elementwise("table", {40, 64});
  return spec;
}

// Calls use(model) on every rank.
template <class Use>
void with_model(int ranks, Use use) {
  const mfsdp::model_spec spec = small_model();
  mfsdp::thread_world{ranks}.run([&](auto world) {
    mfsdp::sharded_model model{spec, world, mfsdp::owner_placement{}, mfsdp::adamw{}};
    use(model);
  });
}

template <class Model>
void initialize(Model& model) {
  model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t first) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.1f * std::sin(float(first) + float(i));
    }
  });
}

// One rank has the gradient, so that the number of ranks does not matter.
template <class Model>
void train_step(Model& model, std::int64_t step) {
  for (auto unit : model.backward_order()) {
    auto weights = model.acquire(unit, mfsdp::pass::backward);
    auto gradients = model.gradients(unit);
    gradients.zero();
    for (std::size_t t = 0; model.rank() == 0 && t < gradients.pointers().size(); ++t) {
      auto gradient = gradients[t].flat();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = weights[t].flat()[i] - std::cos(float(i % 97) + float(step));
      }
    }
    gradients.reduce();
  }
  model.step();
}

template <class Model>
std::vector<float> parameters_of(Model& model) {
  std::vector<float> all;
  for (auto unit : model.forward_order()) {
    auto weights = model.acquire(unit, mfsdp::pass::evaluate);
    for (std::size_t t = 0; t < weights.pointers().size(); ++t) {
      const auto values = weights[t].flat();
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

template <class Model>
void print_saved(const Model& model, std::int64_t step) {
  if (model.rank() != 0) return;
  fmt::print("{}\n", step);
  std::fflush(stdout);
}

// Saves by save(), or else by a background_saver.
void train(const std::string& folder, std::int64_t steps, bool behind) {
  with_model(2, [&](auto& model) {
    mfsdp::background_saver saver(folder);
    std::int64_t step = 0;
    if (mfsdp::latest_checkpoint(model, folder)) {
      step = mfsdp::load(model, folder).step;
    } else {
      initialize(model);
    }
    while (step < steps) {
      train_step(model, ++step);
      if (!behind) {
        mfsdp::save(model, folder);
        print_saved(model, step);
        continue;
      }
      saver.save(model);  // completes that of the step before, unless poll() or wait() have
      if (step % 3 == 0 && saver.wait()) {
        print_saved(model, step);
      } else if (step % 3 == 1 && saver.poll()) {
        print_saved(model, step);
      } else if (step % 3 == 2) {
        print_saved(model, step - 1);
      }
    }
    if (saver.wait()) print_saved(model, step);
  });
}

void check(const std::string& folder, std::int64_t least) {
  const auto found = mfsdp::detail::checkpoints_in(folder);
  const std::int64_t latest = found.empty() ? 0 : found.rbegin()->first;
  if (latest < least) {
    throw std::runtime_error(
        fmt::format("step {} was saved, but the latest checkpoint is of step {}", least, latest));
  }
  std::map<std::int64_t, std::vector<float>> expected;
  with_model(2, [&](auto& model) {
    initialize(model);
    for (std::int64_t step = 1; step <= latest; ++step) {
      train_step(model, step);
      if (!found.contains(step)) continue;
      std::vector<float> values = parameters_of(model);
      if (model.rank() == 0) expected[step] = std::move(values);
    }
  });
  for (const auto& [step, path] : found) {
    const std::string alone = fmt::format("{}.check", folder);
    std::filesystem::remove_all(alone);
    std::filesystem::create_directories(alone);
    std::filesystem::copy(path, alone + "/" + mfsdp::detail::step_name(step));
    with_model(3, [&](auto& model) {
      const mfsdp::loaded at = mfsdp::load(model, alone);
      if (at.step != step || parameters_of(model) != expected.at(step)) {
        throw std::runtime_error(fmt::format("'{}' has other values than were saved", path));
      }
    });
    std::filesystem::remove_all(alone);
  }
  fmt::print("{} checkpoints, the latest of step {}\n", found.size(), latest);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 3 && (arguments[0] == "train" || arguments[0] == "behind")) {
      train(arguments[1], std::stoll(arguments[2]), arguments[0] == "behind");
    } else if (arguments.size() == 3 && arguments[0] == "check") {
      check(arguments[1], std::stoll(arguments[2]));
    } else {
      fmt::print(stderr, "usage: save_loop train|behind FOLDER STEPS | check FOLDER LEAST\n");
      return 2;
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
