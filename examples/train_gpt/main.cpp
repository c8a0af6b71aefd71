// Trains a small GPT on real text with every matrix whole on one owner rank.
//
//   train_gpt --data FILE                 one run
//   train_gpt --data FILE --demo FOLDER   the tour: Muon, AdamW, and the proof against full copies
//   mpirun -n 4 train_gpt --engine mpi --data FILE       one run, every rank a process

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.hpp"
#include "choices.hpp"
#include "engines.hpp"
#include "report.hpp"

namespace {

using namespace train_gpt;
using json = nlohmann::ordered_json;

std::string name_of(const settings& how) {
  return how.optimizer + " on " + how.placement;
}

// `log_path`: where each loss is written as soon as it is known; nowhere if empty.
outcome run(const engine& ranks, const settings& how, const text& data,
            const std::string& log_path = {}) {
  // A launcher's pipe may look like a terminal.
  progress_line line(name_of(how), how, !ranks.process && isatty(STDOUT_FILENO) != 0);
  progress report = line.callbacks();
  std::ofstream log;
  if (!log_path.empty() && ranks.speaks()) {
    log.open(log_path);
    if (!log) throw std::runtime_error("cannot write " + log_path);
    report.on_step = [&log, show = report.on_step](int step, double loss, double seconds) {
      log << step << ' ' << fmt::format("{}", loss) << std::endl;
      show(step, loss, seconds);
    };
  }
  return ranks.train(how, data, report);
}

double characters_per_second(const settings& how, const outcome& result) {
  return how.sequences * how.shape.context * static_cast<double>(result.losses.size()) /
         result.train_seconds;
}

json figures_of(const settings& how, const outcome& result) {
  std::int64_t step_bytes = 0;
  std::int64_t step_collectives = 0;
  std::int64_t peak = 0;
  std::int64_t resident = 0;
  for (const rank_account& account : result.ranks) {
    const auto& step = account.moved[static_cast<std::size_t>(mfsdp::phase::step)];
    step_bytes += step.sent + step.received;
    step_collectives += step.collectives;
    peak = std::max(peak, account.memory.total());
    resident = std::max(resident, account.memory.resident());
  }
  json figures{{"optimizer", how.optimizer},
               {"placement", how.placement},
               {"ranks", result.ranks.size()},
               {"steps", how.steps},
               {"train_loss", result.losses.empty() ? json() : json(result.losses.back())},
               {"train_seconds", result.train_seconds},
               {"chars_per_second", characters_per_second(how, result)},
               {"step_bytes", step_bytes},
               {"step_collectives", step_collectives},
               {"peak_live_bytes_max", peak},
               {"resident_bytes_max", resident},
               {"resident_bytes_ideal", result.resident_bytes_ideal}};
  if (!result.validation.empty()) figures["val_loss"] = result.final_validation();
  return figures;
}

void write_json(const std::string& path, const json& figures) {
  std::ofstream file(path);
  file << figures.dump(2) << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

// Muon; AdamW at the same steps; the first steps of Muon again with full copies everywhere.
void tour(const engine& ranks, settings how, const text& data, const std::string& folder,
          const std::string& json_path) {
  const double bigram = bigram_loss(data);
  how.sample = how.sample > 0 ? how.sample : 320;
  if (how.validate_every == 0) how.validate_every = how.steps;
  const outcome muon = run(ranks, how, data);

  settings other = how;
  other.optimizer = "adamw";
  if (how.elementwise_rate == settings{}.elementwise_rate) {
    other.elementwise_rate = 1e-3;  // the best of a sweep, see docs/benchmarks.md
  }
  other.sample = 0;
  const outcome adamw = run(ranks, other, data);

  // The same schedule, cut short: only the placement differs.
  settings copies = how;
  copies.placement = "replicated";
  copies.stop_after = std::min(50, how.steps);
  copies.validate_every = 0;
  copies.sample = 0;
  const outcome replicated = run(ranks, copies, data);
  double difference = 0;
  for (std::size_t step = 0; step < replicated.losses.size(); ++step) {
    difference = std::max(difference, std::abs(replicated.losses[step] - muon.losses[step]));
  }

  fmt::print("\n{}\n{}\n", muon.plan, rank_table(muon));
  fmt::print("validation loss after {} steps, nats per byte\n", how.steps);
  fmt::print("  {:<28} {:.3f}\n", "muon", muon.final_validation());
  fmt::print("  {:<28} {:.3f}\n", "adamw", adamw.final_validation());
  fmt::print("  {:<28} {:.3f}\n", "bigram baseline", bigram);
  fmt::print("first {} steps with full copies: largest difference of a loss {}{}\n",
             replicated.losses.size(), difference, difference == 0 ? ", equal bit for bit" : "");
  fmt::print("\n{}\n\n", muon.sample);

  json figures = figures_of(how, muon);
  figures["val_loss_adamw"] = adamw.final_validation();
  figures["bigram_loss"] = bigram;
  figures["train_seconds_adamw"] = adamw.train_seconds;
  figures["chars_per_second_adamw"] = characters_per_second(other, adamw);
  figures["steps_vs_replicated"] = replicated.losses.size();
  figures["max_loss_difference_vs_replicated"] = difference;
  write_json(json_path.empty() ? folder + "/report.json" : json_path, figures);
  if (draw_losses(folder, {{"muon", &muon}, {"adamw", &adamw}}, bigram)) {
    fmt::print("wrote {0}/loss.png and {0}/report.json\n", folder);
  }
  if (difference != 0) throw std::runtime_error("owner placement and full copies differ");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a small GPT on a text, byte by byte, sharded over ranks."};
  settings how;
  std::string engine_name = "threads";
  std::optional<int> ranks;
  std::string data_path;
  std::string json_path;
  std::string log_path;
  std::string demo_folder;
  app.add_option("--data", data_path, "text to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--engine", engine_name,
                 "what ranks are: threads, or processes under mpirun (mpi)")
      ->check(CLI::IsMember({"threads", "mpi"}))
      ->capture_default_str();
  app.add_option("--ranks", ranks, "how many; 4 threads, or as many as mpirun has started")
      ->check(one_or_more);
  app.add_option("--placement", how.placement, "who holds what")
      ->check(CLI::IsMember({"owner", "rows", "replicated"}))
      ->capture_default_str();
  std::string presets;
  for (const auto& preset : mfsdp::muon_presets) presets += fmt::format(" {}", preset.name);
  app.add_option("--optimizer", how.optimizer,
                 fmt::format("for the hidden matrices: {}; AdamW updates the rest. Presets:{}",
                             optimizer_names, presets))
      ->capture_default_str();
  app.add_option("--steps", how.steps, "training steps")->check(one_or_more)->capture_default_str();
  app.add_option("--stop-after", how.stop_after, "steps to take of the schedule; 0 for all")
      ->check(none_or_more)
      ->capture_default_str();
  app.add_option("--sequences", how.sequences, "sequences a step, of all ranks together")
      ->check(one_or_more)
      ->capture_default_str();
  app.add_option("--layers", how.shape.layers, "transformer blocks")
      ->check(one_or_more)
      ->capture_default_str();
  app.add_option("--heads", how.shape.heads, "attention heads")
      ->check(one_or_more)
      ->capture_default_str();
  app.add_option("--width", how.shape.width, "model width")
      ->check(one_or_more)
      ->capture_default_str();
  app.add_option("--context", how.shape.context, "characters a sequence")
      ->check(one_or_more)
      ->capture_default_str();
  app.add_option("--seed", how.seed, "of initial values and data order")->capture_default_str();
  app.add_option("--matrix-rate", how.matrix_rate,
                 "learning rate of the hidden matrices, unless adamw has them")
      ->check(rate);
  app.add_option("--elementwise-rate", how.elementwise_rate, "AdamW's learning rate")
      ->check(rate)
      ->capture_default_str();
  app.add_option("--clip", how.clip, "largest global gradient norm, 0 for none")
      ->check(rate)
      ->capture_default_str();
  app.add_option("--prefetch", how.prefetch, "units gathered ahead")
      ->check(none_or_more)
      ->capture_default_str();
  app.add_option("--validate-every", how.validate_every, "steps between validations, 0 for none")
      ->check(none_or_more)
      ->capture_default_str();
  app.add_option("--sample", how.sample, "characters to generate at the end")
      ->check(none_or_more)
      ->capture_default_str();
  auto* const checkpoint = app.add_option("--checkpoint", how.checkpoint, "folder of checkpoints");
  app.add_option("--save-every", how.save_every,
                 "steps between checkpoints, with one at the end; 0 for none")
      ->check(none_or_more)
      ->needs(checkpoint)
      ->capture_default_str();
  app.add_flag("--resume", how.resume, "go on from the latest checkpoint, if there is one")
      ->needs(checkpoint);
  app.add_option("--log", log_path, "write step and loss to this file, a line each as they come");
  app.add_option("--json", json_path, "write the figures to this file");
  app.add_option("--demo", demo_folder, "the tour: compare optimizers and placements, draw, report")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);

  engine world;  // outlives what goes wrong, since MPI ends only when all ranks do
  try {
    // What may fail on one rank alone comes before MPI starts.
    const text data = load_text(data_path, how.shape.context);
    how.shape.vocabulary = data.vocabulary();
    world = engine_name == "mpi" ? processes() : threads(ranks.value_or(4));
    if (ranks && *ranks != world.ranks) {
      throw std::invalid_argument(
          fmt::format("--ranks {}, but this job has {} processes; leave it out, or start as many "
                      "with mpirun -n",
                      *ranks, world.ranks));
    }
    if (!demo_folder.empty()) {
      if (world.process) throw std::invalid_argument("--demo runs with --engine threads");
      if (!how.checkpoint.empty()) {
        throw std::invalid_argument("--demo makes three runs; --checkpoint is of one");
      }
      tour(world, how, data, demo_folder, json_path);
      return 0;
    }
    const outcome result = run(world, how, data, log_path);
    if (!world.speaks()) return 0;
    fmt::print("\n{}\n{}\n", result.plan, rank_table(result));
    if (!result.validation.empty()) {
      fmt::print("validation loss {:.3f}, bigram baseline {:.3f} nats per byte\n",
                 result.final_validation(), bigram_loss(data));
    }
    if (!result.sample.empty()) fmt::print("\n{}\n", result.sample);
    if (!json_path.empty()) {
      json figures = figures_of(how, result);
      figures["first_step"] = result.first_step;
      figures["losses"] = result.losses;  // every digit, so that runs can be compared
      write_json(json_path, figures);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_gpt{}: {}\n",
               world.process ? fmt::format(", rank {}", *world.process) : "", e.what());
    return 1;
  }
  return 0;
}
