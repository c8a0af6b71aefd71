// Training throughput of placements, side by side in one run: the small transformer of
// examples/train_gpt on synthetic text, placements taking turns, ratios of medians.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report.hpp"
#include "train_gpt/choices.hpp"

namespace {}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Training throughput by placement, chars/s, alternating runs in one process."};
  train_gpt::settings how{.steps = 30, .validate_every = 0};
  int ranks = 2;
  int repetitions = 5;
  std::string json_path;
  app.add_option("--ranks", ranks, "ranks, as threads")->capture_default_str();
  app.add_option("--steps", how.steps, "training steps in a run")->capture_default_str();
  app.add_option("--repetitions", repetitions, "runs of each kind")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", json_path, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);

  const train_gpt::text data(train_gpt::synthetic_text(1 << 20, 1), how.shape.context);
  how.shape.vocabulary = data.vocabulary();
  const double characters = static_cast<double>(how.sequences) * how.shape.context * how.steps;
  const std::vector<std::string> optimizers{"adamw", "muon"};
  const std::vector<std::string> placements{"replicated", "owner", "rows"};

  try {
    // Round by round, every kind once, so that a change of the machine's speed meets all alike.
    std::map<std::string, std::vector<double>> rates;
    for (int repetition = -1; repetition < repetitions; ++repetition) {
      for (const std::string& optimizer : optimizers) {
        for (const std::string& placement : placements) {
          how.optimizer = optimizer;
          how.placement = placement;
          const train_gpt::outcome run = train_gpt::train(mfsdp::thread_world{ranks}, how, data);
          if (repetition < 0) continue;  // warm-up
          rates[optimizer + " " + placement].push_back(characters / run.train_seconds);
        }
      }
      fmt::print(stderr, "\rround {}/{} ", repetition + 1, repetitions);
    }
    fmt::print(stderr, "\n");

    nlohmann::ordered_json figures{{"ranks", ranks}, {"repetitions", repetitions}};
    fmt::print("{:<10} {:<12} {:>10} {:>10} {:>10} {:>14}\n", "optimizer", "placement", "chars/s",
               "slowest", "fastest", "to replicated");
    for (const std::string& optimizer : optimizers) {
      for (const std::string& placement : placements) {
        const std::vector<double>& all = rates[optimizer + " " + placement];
        // Pairs of one round, so that drift cancels.
        std::vector<double> ratios;
        for (std::size_t i = 0; i < all.size(); ++i) {
          ratios.push_back(all[i] / rates[optimizer + " replicated"][i]);
        }
        fmt::print("{:<10} {:<12} {:>10.0f} {:>10.0f} {:>10.0f} {:>14.3f}\n", optimizer, placement,
                   median(all), *std::ranges::min_element(all), *std::ranges::max_element(all),
                   median(ratios));
        figures["chars_per_second_" + optimizer + "_" + placement] = median(all);
        figures["ratio_" + optimizer + "_" + placement + "_to_replicated"] = median(ratios);
      }
    }
    write_figures(json_path, figures);
  } catch (const std::exception& e) {
    fmt::print(stderr, "throughput: {}\n", e.what());
    return 1;
  }
  return 0;
}
