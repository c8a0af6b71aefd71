// Trains a small GPT on sites that meet rarely, by many methods on the same data.
//
//   train_sites --data FILE --method lordo_global        one run
//   train_sites --data FILE --demo FOLDER                every method once: table, picture, figures
//   train_sites --data FILE --study FOLDER               rates, seeds, ranks and periods; takes
//   hours

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lordo/wall_clock.hpp"
#include "methods.hpp"
#include "mfsdp/exchange_report.hpp"
#include "report.hpp"
#include "study.hpp"
#include "train_gpt/arguments.hpp"

namespace {

using namespace train_sites;
using json = nlohmann::ordered_json;

const method& find(const std::vector<method>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &method::name);
  if (found != all.end()) return *found;
  std::string names;
  for (const method& m : all) names += " " + m.name;
  throw std::invalid_argument("no method '" + name + "'; there are:" + names);
}

result train_once(const method& m, settings how, const text& data) {
  if (how.rate == 0) how.rate = m.rate;
  if (m.sites == 2) how.ranks = {2, 2};
  result done{&m, how, train(m, how, data)};
  fmt::print("{:<24} rate {:<7g} rank {:<3} period {:<4} seed {}  validation {:.4f}  {:.1f} s\n",
             m.name, how.rate, how.rank, how.period, how.seed, done.run.validation,
             done.run.seconds);
  std::fflush(stdout);
  return done;
}

// The model that the paper calls 720M, as far as its shapes can be guessed: shapes and counters
// only.
struct large_model {
  static constexpr int rank = 256;
  static constexpr int period = 32;

  mfsdp::model_spec spec;
  large_model() {
    constexpr mfsdp::index_t width = 2048;
    spec.unit("embedding").elementwise("tokens", {50368, width});
    for (int layer = 0; layer < 12; ++layer) {
      spec.unit(fmt::format("block.{}", layer))
          .vector("norm1", width)
          .matrix("qkv", 3 * width, width, {.row_groups = 3})
          .matrix("out", width, width)
          .vector("norm2", width)
          .matrix("up", 4 * width, width)
          .matrix("down", width, 4 * width);
    }
    spec.unit("head").vector("norm", width);
  }

  template <class Matrix, class Rest>
  [[nodiscard]] mfsdp::exchange_load load(Matrix matrix, Rest rest) const {
    const mfsdp::mixed rules{matrix, rest};
    const auto plan = mfsdp::make_plan(spec, 1, mfsdp::owner_placement{}, rules);
    // Steps of the middle of a run, and as many as a period has.
    return mfsdp::exchange_load_of(plan, rules, period + 1, 2 * period);
  }
};

// One line of the table of the large model.
struct large_row {
  std::string_view title;
  mfsdp::exchange_load load;
  double period = 1;
  int rounds = 1;  // of a meeting, one after the other
};

// Seconds of a step against bandwidth, a line for each method. False where gnuplot is missing.
bool draw_wall_clock(const std::string& picture, const std::vector<large_row>& rows,
                     double compute) {
  const std::string stem = picture.substr(0, picture.rfind('.'));
  std::string plot;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string data = fmt::format("{}.{}.dat", stem, i);
    std::ofstream points(data);
    for (double bandwidth = 0.1; bandwidth < 1000; bandwidth *= 1.25) {
      const lordo::site_link link{"", 1e9 * bandwidth, 10e-3};
      points << bandwidth << ' '
             << lordo::step_seconds(compute, rows[i].load.exchanged / large_model::period,
                                    rows[i].period, rows[i].rounds, 4, link)
             << '\n';
    }
    plot += fmt::format("'{}' with lines lw 2 lc {} title '{}', ", data, i + 1, rows[i].title);
  }
  const std::string script = stem + ".gp";
  std::ofstream file(script);
  file << "set terminal pngcairo size 900,560 font 'sans,10'\nset output '" << picture
       << "'\nset grid\nset logscale xy\nset xlabel 'Gbit/s between sites (latency 10 ms)'\n"
       << "set ylabel 'seconds a step, modelled'\nplot " << plot << '\n';
  file.close();
  return std::system(("gnuplot '" + script + "'").c_str()) == 0;
}

// Bytes, states and modelled times of the large model.
void print_large_model(json& figures, const std::string& picture) {
  const large_model model;
  const lordo::sync_periods together{.parameters = model.period};
  const lordo::sync_periods parameters{
      .parameters = model.period, .first_moment = 0, .second_moment = 0};
  const lordo::averaged<mfsdp::adamw> each_step{};
  const lordo::local_steps<mfsdp::adamw> rest{.periods = together};
  const lordo::local_steps<mfsdp::adamw> rest_parameters{.periods = parameters};
  const lordo::low_rank_adam<> low_rank{.rank = model.rank, .periods = together};
  auto with_feedback = low_rank;
  with_feedback.feedback = lordo::error_feedback::full;
  using factored = lordo::exchange_low_rank;

  const std::vector<large_row> rows{
      {"DDP AdamW", model.load(lordo::averaged<mfsdp::adamw>{}, each_step)},
      {"low-rank DDP, r (p + q)",
       model.load(lordo::averaged<mfsdp::muon, factored>{.exchange = {.rank = model.rank}},
                  each_step),
       1, 2},
      {"low-rank DDP, one side", model.load(lordo::galore<>{.rank = model.rank}, each_step)},
      {"local AdamW", model.load(lordo::local_steps<mfsdp::adamw>{.periods = together}, rest),
       model.period},
      {"LoRDO, all moments", model.load(low_rank, rest), model.period},
      {"LoRDO, moments of matrices", model.load(low_rank, rest_parameters), model.period},
      {"local Muon, parameters only",
       model.load(lordo::local_steps{.inner = mfsdp::muon{}, .periods = parameters},
                  rest_parameters),
       model.period},
      {"local Muon, low-rank exchange",
       model.load(lordo::local_steps{.inner = mfsdp::muon{},
                                     .periods = parameters,
                                     .exchange = factored{.rank = model.rank}},
                  rest_parameters),
       model.period, 2}};
  const mfsdp::exchange_load& ddp = rows[0].load;
  const mfsdp::exchange_load& lordo_load = rows[5].load;

  // Four sites of 8 chips at 40 % of 989 TFLOP/s each, 2 million tokens a step in all.
  const double compute =
      lordo::compute_seconds(static_cast<double>(ddp.parameters), 2e6 / 4, 8 * 989e12, 0.4);
  const std::vector<lordo::site_link> links{{"1 Gbit/s, 50 ms", 1e9, 50e-3},
                                            {"10 Gbit/s, 10 ms", 1e10, 1e-2},
                                            {"100 Gbit/s, 1 ms", 1e11, 1e-3},
                                            {"400 Gbit/s, 0.1 ms", 4e11, 1e-4}};
  fmt::print(
      "\n{:.0f}M parameters, rank {}, period {}: counted from shapes. Seconds a step on 4 sites, "
      "by a model: {:.2f} s of computing on 8 x 989 TFLOP/s at 40 %, nothing overlapped\n",
      static_cast<double>(ddp.parameters) / 1e6, large_model::rank, large_model::period, compute);
  fmt::print("{:<32} {:>12} {:>9}", "method", "MB a step", "DDP over");
  for (const auto& link : links) fmt::print(" {:>19}", link.name);
  fmt::print("\n");
  for (const large_row& r : rows) {
    const double numbers = r.load.exchanged / model.period;
    fmt::print("{:<32} {:>12.1f} {:>9.1f}", r.title, 4e-6 * numbers,
               ddp.exchanged / r.load.exchanged);
    for (const auto& link : links) {
      fmt::print(" {:>19.2f}", lordo::step_seconds(compute, numbers, r.period, r.rounds, 4, link));
    }
    fmt::print("\n");
  }
  if (!draw_wall_clock(picture, rows, compute)) {
    fmt::print(stderr, "no picture: gnuplot failed or is not installed\n");
  }

  const auto of = [](const mfsdp::exchange_load& load, std::string_view name) {
    const auto found = load.states.find(name);
    if (found == load.states.end()) {
      throw std::logic_error(fmt::format("no rule has a state '{}'", name));
    }
    return static_cast<double>(found->second);
  };
  // Of matrices alone: what LoRDO keeps of them against the two moments of Adam.
  double matrices = 0;
  for (const auto& tensor : model.spec.tensors()) {
    if (tensor.role == mfsdp::tensor_role::matrix) {
      matrices += static_cast<double>(tensor.elements());
    }
  }
  const double others = static_cast<double>(ddp.parameters) - matrices;
  const double adam = 2 * matrices;
  double numbers = 0;
  fmt::print("\nnumbers kept of the matrices, Adam's {:.0f}M over them\n", adam / 1e6);
  const auto keep = [&](std::string_view title, const std::string& key, double more) {
    numbers += more;
    fmt::print("  {:<40} {:>8.1f}M {:>7.2f}\n", title, numbers / 1e6, adam / numbers);
    figures[key] = adam / numbers;
  };
  keep("moments", "state_ratio_moments",
       of(lordo_load, "first_moment") + of(lordo_load, "second_moment") - 2 * others);
  keep("and basis", "state_ratio_with_basis", of(lordo_load, "basis"));
  keep("and anchor", "state_ratio_with_anchor", of(lordo_load, "anchor"));
  keep("and error feedback", "state_ratio_with_feedback",
       of(model.load(with_feedback, rest), "feedback"));
  figures["bytes_ratio_720m_ddp"] = ddp.exchanged / lordo_load.exchanged;
  figures["bytes_ratio_720m_lowrank_ddp"] = rows[1].load.exchanged / lordo_load.exchanged;
  figures["bytes_ratio_720m_lowrank_ddp_one_sided"] = rows[2].load.exchanged / lordo_load.exchanged;
  figures["bytes_ratio_720m_ddp_all_moments"] = ddp.exchanged / rows[4].load.exchanged;
  figures["bytes_ratio_720m_lowrank_ddp_all_moments"] =
      rows[1].load.exchanged / rows[4].load.exchanged;
}

void write_json(const std::string& path, const json& figures) {
  std::ofstream file(path);
  file << figures.dump(2) << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

// Every method once, at the rate that the study found.
void demo(const std::vector<method>& all, const settings& how, const text& data,
          const std::string& folder) {
  std::vector<result> results;
  for (const method& m : all) results.push_back(train_once(m, how, data));
  fmt::print("\n{} steps, {} sites with data of their own, {} parameters, rank {}, period {}\n\n{}",
             how.steps, how.sites(), results.front().run.parameters, how.rank, how.period,
             table_of(results));
  fmt::print(
      "loss: validation, nats per byte. Numbers kept: of the matrices, parameters not counted\n");

  json figures{{"steps", how.steps}, {"rank", how.rank}, {"period", how.period}};
  const sizes size = sizes_of(how, data.vocabulary());
  double error = 0;
  double in_step = 0;
  for (const result& r : results) {
    figures["loss_" + r.what->name] = r.run.validation;
    figures["bytes_a_step_" + r.what->name] = bytes_a_step(r);
    error = std::max(error, formula_error(r, size));
    in_step += r.run.sent_in_step;
    if (r.what->name == "lordo_global" || r.what->name == "lordo_global_no_qhm") {
      fmt::print("\n{}\n{}", r.what->title, lordo::to_text(r.run.bases));
      figures["movement_" + r.what->name] = r.run.bases.mean(&lordo::basis_state::movement);
    }
  }
  figures["counter_formula_error_max"] = error;
  figures["bytes_in_step"] = 4 * in_step;
  fmt::print("\ncounted bytes and formulas differ by {:.2f} % at most\n", 100 * error);
  print_large_model(figures, folder + "/lordo_wall_clock.png");
  write_json(folder + "/lordo.json", figures);
  if (draw(folder + "/lordo.png", results)) {
    fmt::print("\nwrote {0}/lordo.png, {0}/lordo_wall_clock.png and {0}/lordo.json\n", folder);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a small GPT on sites that meet rarely, byte by byte."};
  settings how;
  int workers = 4;
  std::string data_path;
  std::string name = "lordo_global";
  std::string demo_folder;
  std::string study_folder;
  std::string json_path;
  app.add_option("--data", data_path, "text to learn")->required()->check(CLI::ExistingFile);
  app.add_option("--method", name, "what one run trains with; a wrong name lists them")
      ->capture_default_str();
  app.add_option("--workers", workers, "sites of one rank each")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--steps", how.steps, "a multiple of the period")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--period", how.period, "steps between two meetings")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--rank", how.rank, "of what is low-rank")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--rate", how.rate, "learning rate of the matrices; the method's own if not given")
      ->check(train_gpt::rate);
  app.add_option("--elementwise-rate", how.elementwise_rate, "AdamW's, on everything else")
      ->check(train_gpt::rate)
      ->capture_default_str();
  app.add_option("--sequences", how.sequences, "a step, of all workers together")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--width", how.shape.width, "model width")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--layers", how.shape.layers, "transformer blocks")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--context", how.shape.context, "characters a sequence")
      ->check(train_gpt::one_or_more)
      ->capture_default_str();
  app.add_option("--seed", how.seed, "of initial values and data order")->capture_default_str();
  app.add_option("--json", json_path, "write the figures of one run to this file");
  app.add_option("--demo", demo_folder, "every method once: a table, a picture, figures")
      ->check(CLI::ExistingDirectory);
  app.add_option("--study", study_folder, "the grid behind the demo's rates, kept in this folder")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);

  try {
    how.ranks.assign(static_cast<std::size_t>(workers), 1);
    const text data = train_gpt::load_text(data_path, how.shape.context);
    const std::vector<method> all = all_methods();
    if (!study_folder.empty()) {
      study(all, how, data, study_folder);
    } else if (!demo_folder.empty()) {
      demo(all, how, data, demo_folder);
    } else {
      const result done = train_once(find(all, name), how, data);
      fmt::print("\n{}{}", table_of({done}), lordo::to_text(done.run.bases));
      if (!json_path.empty()) {
        write_json(json_path, {{"loss", done.run.validation},
                               {"bytes_a_step", bytes_a_step(done)},
                               {"rate", done.how.rate},
                               {"seconds", done.run.seconds}});
      }
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_sites: {}\n", e.what());
    return 1;
  }
  return 0;
}
