// What each optimizer reaches on real text: validation loss after equal steps and after equal time,
// at the best rate of a sweep, over several seeds; as a table and as a picture.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "report.hpp"
#include "train_gpt/choices.hpp"

namespace {

using train_gpt::outcome, train_gpt::settings;

struct contender {
  std::string optimizer;
  std::vector<double> rates;

  double rate = 0;                     // the best of the sweep
  double seconds_per_step = 0;         // median
  std::vector<outcome> equal_steps{};  // one for each seed, at the best rate
  std::vector<outcome> equal_time{};
};

settings with_rate(settings how, const contender& c, double rate) {
  how.optimizer = c.optimizer;
  if (c.optimizer == "adamw") {
    how.elementwise_rate = rate;
  } else {
    how.matrix_rate = rate;
  }
  return how;
}

double mean_loss(const std::vector<outcome>& runs) {
  double sum = 0;
  for (const outcome& run : runs) sum += run.final_validation();
  return sum / static_cast<double>(runs.size());
}

// Largest less smallest.
double spread(const std::vector<outcome>& runs) {
  const auto [low, high] = std::ranges::minmax_element(runs, {}, &outcome::final_validation);
  return high->final_validation() - low->final_validation();
}

// Short runs that take turns, so that a change of the machine's speed meets all alike.
void time_steps(mfsdp::thread_world& world, std::vector<contender>& contenders, settings how,
                const train_gpt::text& data) {
  how.stop_after = std::min(how.steps, 20);
  how.validate_every = 0;
  std::map<std::string, std::vector<double>> seconds;
  for (int round = 0; round < 4; ++round) {
    for (const contender& c : contenders) {
      const outcome run = train_gpt::train(world, with_rate(how, c, c.rates.front()), data);
      if (round > 0) seconds[c.optimizer].push_back(run.train_seconds / how.stop_after);
    }
  }
  for (contender& c : contenders) c.seconds_per_step = median(seconds[c.optimizer]);
}

void draw(const std::string& picture, const std::vector<contender>& contenders) {
  std::string by_steps;
  std::string by_time;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const contender& c = contenders[i];
    const auto write = [&](const std::string& kind, const outcome& run, double scale) {
      const std::string name = fmt::format("{}.{}.{}.dat", picture, kind, i);
      std::ofstream file(name);
      for (const auto& p : run.validation) file << p.step * scale << ' ' << p.loss << '\n';
      return fmt::format("'{}' with linespoints lw 2 pt 7 ps 0.6 lc {} title '{}', ", name, i + 1,
                         c.optimizer);
    };
    by_steps += write("steps", c.equal_steps.front(), 1);
    by_time += write("time", c.equal_time.front(), c.seconds_per_step);
  }
  const std::string script = picture + ".gp";
  std::ofstream(script) << "set terminal pngcairo size 1200,500 font 'sans,11'\nset output '"
                        << picture << "'\nset multiplot layout 1,2\nset grid\n"
                        << "set ylabel 'validation loss, nats per byte'\n"
                        << "set xlabel 'steps'\nplot " << by_steps
                        << "\nset xlabel 'seconds'\nplot " << by_time << "\nunset multiplot\n";
  if (std::system(("gnuplot '" + script + "'").c_str()) != 0) {
    fmt::print(stderr, "no picture: gnuplot failed or is not installed\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Validation loss of the optimizers after equal steps and equal time, rates from a sweep."};
  settings how{.steps = 120, .validate_every = 12};
  int ranks = 2;
  std::string data_path;
  std::string json_path;
  std::string picture;
  int seeds = 3;
  app.add_option("--data", data_path, "text to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--ranks", ranks, "ranks, as threads")->capture_default_str();
  app.add_option("--steps", how.steps, "training steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seeds", seeds, "runs at the best rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--picture", picture, "draw the curves into this PNG");
  app.add_option("--json", json_path, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);

  std::vector<contender> contenders{
      {"muon", {0.01, 0.02, 0.04, 0.08}},
      {"soap", {3e-3, 6e-3, 1e-2, 2e-2}},
      {"shampoo", {3e-3, 6e-3, 1e-2, 2e-2}},
      {"adamw", {1e-3, 2e-3, 4e-3, 8e-3}},
  };
  try {
    const train_gpt::text data = train_gpt::load_text(data_path, how.shape.context);
    how.shape.vocabulary = data.vocabulary();
    nlohmann::ordered_json figures{{"ranks", ranks}, {"steps", how.steps}, {"seeds", seeds}};
    mfsdp::thread_world world{ranks};
    fmt::print("timing\n");
    time_steps(world, contenders, how, data);

    const auto train = [&](const contender& c, double rate, int steps, int seed) {
      settings run = with_rate(how, c, rate);
      run.steps = steps;
      run.validate_every = std::max(1, steps / 10);
      run.seed = static_cast<std::uint64_t>(seed);
      outcome result = train_gpt::train(world, run, data);
      fmt::print("{} at {:g}, {} steps, seed {}: {:.4f}\n", c.optimizer, rate, steps, seed,
                 result.final_validation());
      std::fflush(stdout);
      return result;
    };
    // Time is what the first contender takes for its steps.
    const double budget = contenders.front().seconds_per_step * how.steps;
    for (contender& c : contenders) {
      double best = std::numeric_limits<double>::infinity();
      for (const double rate : c.rates) {
        outcome run = train(c, rate, how.steps, 1);
        figures[fmt::format("loss_{}_rate_{:g}", c.optimizer, rate)] = run.final_validation();
        if (!(run.final_validation() < best)) continue;
        best = run.final_validation();
        c.rate = rate;
        c.equal_steps = {};
        c.equal_steps.push_back(std::move(run));
      }
      if (c.equal_steps.empty()) {
        throw std::runtime_error(c.optimizer + " diverges at every rate of its sweep");
      }
      if (c.rate == c.rates.front() || c.rate == c.rates.back()) {
        fmt::print("note: the best rate of {} is at the edge of its sweep\n", c.optimizer);
      }
      const int steps = std::max(1, static_cast<int>(std::lround(budget / c.seconds_per_step)));
      for (int seed = 1; seed <= seeds; ++seed) {
        if (seed > 1) c.equal_steps.push_back(train(c, c.rate, how.steps, seed));
        c.equal_time.push_back(steps == how.steps ? c.equal_steps.back()
                                                  : train(c, c.rate, steps, seed));
      }
    }

    fmt::print("\n{:<10} {:>8} {:>14} {:>10} {:>10} {:>14} {:>10}\n", "optimizer", "rate",
               "loss, " + std::to_string(how.steps), "spread", "s/step",
               fmt::format("loss, {:.0f} s", budget), "spread");
    for (const contender& c : contenders) {
      fmt::print("{:<10} {:>8g} {:>14.3f} {:>10.3f} {:>10.4f} {:>14.3f} {:>10.3f}\n", c.optimizer,
                 c.rate, mean_loss(c.equal_steps), spread(c.equal_steps), c.seconds_per_step,
                 mean_loss(c.equal_time), spread(c.equal_time));
      figures["rate_" + c.optimizer] = c.rate;
      figures["seconds_per_step_" + c.optimizer] = c.seconds_per_step;
      figures["loss_equal_steps_" + c.optimizer] = mean_loss(c.equal_steps);
      figures["spread_equal_steps_" + c.optimizer] = spread(c.equal_steps);
      figures["loss_equal_time_" + c.optimizer] = mean_loss(c.equal_time);
      figures["spread_equal_time_" + c.optimizer] = spread(c.equal_time);
    }
    if (!picture.empty()) draw(picture, contenders);
    write_figures(json_path, figures);
  } catch (const std::exception& e) {
    fmt::print(stderr, "optimizer_quality: {}\n", e.what());
    return 1;
  }
  return 0;
}
