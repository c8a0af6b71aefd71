// One transformer's parameters, trained by processes in four layouts that take turns in one run:
//   mpirun -n 4 build/release/bench/step
//
//   owner       whole matrices on one owner each, Muon there
//   rows        every matrix cut by rows, gradients of matrices gathered in every step for Muon
//   zero1       owners as above, but parameters stay whole on every rank: gathered once a step
//   replicated  everything on every rank, gradients summed on all of them
//
// Forward and backward are stand-ins: for every matrix the products of a linear layer on a stated
// number of tokens, forward, gradient of the input and gradient of the weight, between acquire and
// reduce as in a trainer, so that transfers can hide behind them.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "mpi_job.hpp"
#include "report.hpp"

namespace {

using mfsdp::index_t, mfsdp::matrix_view, mfsdp::pass, mfsdp::phase;

struct setting {
  index_t layers = 12;
  index_t width = 384;
  index_t vocabulary = 4096;
  index_t context = 512;
  index_t tokens = 1024;
  int rounds = 7;
  mfsdp::message_options engine;
  std::string json_path;
};

mfsdp::model_spec transformer(const setting& how) {
  const index_t w = how.width;
  mfsdp::model_spec spec;
  spec.unit("embedding")
      .elementwise("token", {how.vocabulary, w})
      .elementwise("position", {how.context, w});
  for (index_t layer = 0; layer < how.layers; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .vector("norm1", w)
        .matrix("qkv", 3 * w, w, {.row_groups = 3})
        .matrix("out", w, w)
        .vector("norm2", w)
        .matrix("up", 4 * w, w)
        .matrix("down", w, 4 * w);
  }
  spec.unit("head").vector("norm", w).elementwise("weight", {how.vocabulary, w});
  return spec;
}

// ---------------------------------------------------------------------------------------- stand-in

// The products of linear layers with made-up inputs and output gradients.
class stand_in {
 public:
  explicit stand_in(const setting& how, int rank)
      : tokens_(how.tokens),
        inputs_(made_up(how.tokens * 4 * how.width, rank)),
        output_gradients_(made_up(how.tokens * 4 * how.width, rank + 1000)),
        results_(inputs_.size()) {}

  void forward(matrix_view<const float> weight) {
    const auto [out, in] = weight.shape();
    backend_.multiply(1.0f, of(inputs_, in), mfsdp::transpose::no, weight, mfsdp::transpose::yes,
                      0.0f, {}, result(out));
  }
  void backward(matrix_view<const float> weight, matrix_view<float> gradient) {
    const auto [out, in] = weight.shape();
    const matrix_view<const float> above = of(output_gradients_, out);
    backend_.multiply(1.0f, above, mfsdp::transpose::no, weight, mfsdp::transpose::no, 0.0f, {},
                      result(in));
    backend_.multiply(1.0f / static_cast<float>(tokens_), above, mfsdp::transpose::yes,
                      of(inputs_, in), mfsdp::transpose::no, 0.0f, {}, gradient);
  }

 private:
  static std::vector<float> made_up(index_t elements, int seed) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(i);
      values[i] = static_cast<float>(std::sin(0.7 * seed + 1.3 * x + 1e-4 * x * x));
    }
    return values;
  }
  [[nodiscard]] matrix_view<const float> of(const std::vector<float>& values, index_t side) const {
    return {values.data(), {tokens_, side}};
  }
  [[nodiscard]] matrix_view<float> result(index_t side) {
    return {results_.data(), {tokens_, side}};
  }

  mfsdp::cpu_backend backend_;
  index_t tokens_;
  std::vector<float> inputs_, output_gradients_, results_;
};

// ----------------------------------------------------------------------------------------- layouts

struct times {
  double step = 0;  // seconds of the slowest rank
  double iteration = 0;
  double step_cpu = 0;  // seconds of processors, all ranks together
  double iteration_cpu = 0;
};

struct bytes_of_layout {
  double resident = 0;
  double total = 0;
};

// A model whose type is forgotten.
struct layout {
  std::string name;
  std::function<times()> iterate;
  std::function<mfsdp::memory_usage()> memory;
  std::function<mfsdp::traffic(phase)> moved;
  bytes_of_layout formula;
};

double over_ranks(double mine, MPI_Op what) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, what, MPI_COMM_WORLD);
  return all;
}

// Now, in seconds; those of the processor are of all threads of this process.
struct moment {
  double wall = MPI_Wtime();
  double cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
};

// Forward, backward with reductions, clip, step. The step's own time is that of step(), which
// begins when the reductions are over, because clip waits for them; the iteration's is all of it.
template <class Model>
times iterate(Model& model, stand_in& compute) {
  MPI_Barrier(MPI_COMM_WORLD);
  const moment start;
  const auto& spec = model.plan().spec;
  const auto is_matrix = [&](std::size_t unit, std::size_t i) {
    return spec.tensors()[spec.units()[unit].tensors[i].tensor].role == mfsdp::tensor_role::matrix;
  };
  for (const std::size_t unit : model.forward_order()) {
    const auto weights = model.acquire(unit, pass::forward);
    for (std::size_t i = 0; i < spec.units()[unit].tensors.size(); ++i) {
      if (is_matrix(unit, i)) compute.forward(weights[i]);
    }
  }
  for (const std::size_t unit : model.backward_order()) {
    const auto weights = model.acquire(unit, pass::backward);
    const auto gradients = model.gradients(unit);
    for (std::size_t i = 0; i < spec.units()[unit].tensors.size(); ++i) {
      if (is_matrix(unit, i)) {
        compute.backward(weights[i], gradients[i]);
      } else {
        std::ranges::fill(gradients[i].flat(), 1e-3f);
      }
    }
    gradients.reduce();
  }
  model.clip(1.0);
  const moment before_step;
  model.step();
  const moment end;
  return {over_ranks(end.wall - before_step.wall, MPI_MAX),
          over_ranks(end.wall - start.wall, MPI_MAX),
          over_ranks(end.cpu - before_step.cpu, MPI_SUM), over_ranks(end.cpu - start.cpu, MPI_SUM)};
}

// What a rank should need, in bytes: M elements of matrices and E others, on N ranks. Parameters
// and gradients are floats; Muon keeps one state, AdamW two.
struct memory_formula {
  double matrices = 0, others = 0, ranks = 1;
  double largest_unit = 0, two_slots = 0, largest_matrix = 0, workspace = 0;  // elements

  memory_formula(const mfsdp::model_spec& spec, int n) : ranks(n) {
    std::vector<double> units;
    for (const mfsdp::unit_spec& unit : spec.units()) {
      units.push_back(0);
      for (const mfsdp::tensor_reference& reference : unit.tensors) {
        const mfsdp::tensor_spec& tensor = spec.tensors()[reference.tensor];
        const auto elements = static_cast<double>(tensor.elements());
        units.back() += elements;
        if (tensor.role != mfsdp::tensor_role::matrix) {
          others += elements;
          continue;
        }
        matrices += elements;
        const mfsdp::matrix_shape part{tensor.shape().rows / tensor.matrices(),
                                       tensor.shape().cols};
        largest_matrix = std::max(largest_matrix, static_cast<double>(part.elements()));
        workspace = std::max(workspace, static_cast<double>(mfsdp::muon{}.workspace_size(part)));
      }
    }
    double slots[2]{};
    for (std::size_t i = 0; i < units.size(); ++i) slots[i % 2] = std::max(slots[i % 2], units[i]);
    two_slots = slots[0] + slots[1];
    largest_unit = *std::ranges::max_element(units);
  }

  [[nodiscard]] double all() const { return 12 * matrices + 16 * others; }
  [[nodiscard]] double in_use() const { return 4 * (2 * largest_unit + workspace); }

  [[nodiscard]] bytes_of_layout owner() const {
    return {all() / ranks, all() / ranks + 4 * two_slots + in_use()};
  }
  [[nodiscard]] bytes_of_layout rows() const {
    // States of all matrices on every rank; the gathered gradient, and the update of it.
    const double resident = (8 * matrices + 16 * others) / ranks + 4 * matrices;
    return {resident, resident + 4 * (two_slots + 2 * largest_matrix) + in_use()};
  }
  [[nodiscard]] bytes_of_layout zero1() const {
    return {all() / ranks, all() / ranks + 4 * (matrices + others) + in_use()};
  }
  [[nodiscard]] bytes_of_layout replicated() const { return {all(), all() + in_use()}; }
};

template <class Where, class Rules>
layout make_layout(std::string name, const mfsdp::model_spec& spec, mfsdp::mpi_collective comm,
                   Where placement, Rules rules, mfsdp::model_options options, stand_in& compute,
                   bytes_of_layout formula) {
  using model_type =
      mfsdp::sharded_model<mfsdp::mesh<mfsdp::mpi_collective>, Where, Rules, mfsdp::cpu_backend>;
  const auto model = std::make_shared<model_type>(spec, comm, placement, rules, options);
  model->initialize([](const mfsdp::tensor_spec&, std::span<float> values, index_t first) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(first) + static_cast<double>(i);
      values[i] = 0.02f * static_cast<float>(std::sin(1.7 * x + 1e-4 * x * x));
    }
  });
  return {std::move(name), [model, &compute] { return iterate(*model, compute); },
          [model] { return model->memory_in_use(); },
          [model](phase where) { return model->moved(where); }, formula};
}

// ---------------------------------------------------------------------------------- process memory

// A line of /proc/self/status, in bytes; 0 where there is none.
double process_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key + ":")) continue;
    return 1024 * std::stod(line.substr(key.size() + 1));
  }
  return 0;
}
// From here the peak counts anew.
void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// -------------------------------------------------------------------------------------------
// report

struct record {
  std::vector<times> rounds{};
  std::map<phase, double> moved{};  // bytes of an iteration, received by all ranks together
  double resident = 0;              // of the rank that has most
  double total = 0;
  double process_growth = 0;  // peak of the process in its first iteration, over what it had before
};

const std::vector<std::pair<phase, std::string>> moving_phases{{phase::forward, "forward"},
                                                               {phase::backward, "backward"},
                                                               {phase::clip, "clip"},
                                                               {phase::step, "step"}};

double median_of(const record& r, double times::* what) {
  std::vector<double> values;
  for (const times& t : r.rounds) values.push_back(t.*what);
  return median(std::move(values));
}

// The median of the ratios within each round.
double ratio(const record& a, const record& b, double times::* what) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.rounds.size(); ++i) {
    ratios.push_back(a.rounds[i].*what / (b.rounds[i].*what));
  }
  return median(std::move(ratios));
}

void report(const std::vector<layout>& layouts, const std::vector<record>& records,
            const setting& how, const memory_formula& sizes) {
  const double flops = 6 * static_cast<double>(how.tokens) * sizes.matrices;
  fmt::print(
      "{} layers of width {}, {:.1f}M parameters, {} ranks; stand-in of {:.1f} GFLOP a rank and "
      "iteration ({} tokens), {} rounds\n\n",
      how.layers, how.width, 1e-6 * (sizes.matrices + sizes.others), sizes.ranks, 1e-9 * flops,
      how.tokens, how.rounds);
  nlohmann::ordered_json figures{{"ranks", sizes.ranks},
                                 {"parameters", sizes.matrices + sizes.others},
                                 {"stand_in_flops", flops}};
  fmt::print(
      "{:<11} {:>9} {:>13} {:>8} {:>8} |{:>9} {:>9} {:>9} {:>9} |{:>9} {:>7} {:>9} {:>7} {:>9}\n",
      "layout", "step ms", "iteration ms", "step cpu", "all cpu", "forward", "backward", "clip",
      "step", "resident", "error", "total", "error", "process");
  double largest_error = 0;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const record& r = records[i];
    const std::string& name = layouts[i].name;
    const double step = 1e3 * median_of(r, &times::step);
    const double iteration = 1e3 * median_of(r, &times::iteration);
    const double resident_error = r.resident / layouts[i].formula.resident - 1;
    const double total_error = r.total / layouts[i].formula.total - 1;
    largest_error = std::max({largest_error, std::abs(resident_error), std::abs(total_error)});
    const double step_cpu = median_of(r, &times::step_cpu);
    const double iteration_cpu = median_of(r, &times::iteration_cpu);
    fmt::print("{:<11} {:>9.1f} {:>13.1f} {:>8.2f} {:>8.2f} |", name, step, iteration, step_cpu,
               iteration_cpu);
    figures[name + "_step_ms"] = step;
    figures[name + "_iteration_ms"] = iteration;
    figures[name + "_step_cpu_seconds"] = step_cpu;
    figures[name + "_iteration_cpu_seconds"] = iteration_cpu;
    for (const auto& [where, label] : moving_phases) {
      const double a_rank = r.moved.at(where) / sizes.ranks;
      fmt::print("{:>9.3f} ", 1e-6 * a_rank);
      figures[name + "_" + label + "_bytes"] = a_rank;
    }
    fmt::print("|{:>9.2f} {:>6.2f}% {:>9.2f} {:>6.2f}% {:>9.2f}\n", 1e-6 * r.resident,
               100 * resident_error, 1e-6 * r.total, 100 * total_error, 1e-6 * r.process_growth);
    figures[name + "_resident_bytes"] = r.resident;
    figures[name + "_resident_error"] = resident_error;
    figures[name + "_total_bytes"] = r.total;
    figures[name + "_total_error"] = total_error;
    figures[name + "_process_growth_bytes"] = r.process_growth;
  }
  fmt::print(
      "\nTimes of the slowest rank, then seconds of processors of all ranks, for the step and for "
      "all.\n"
      "MB received by a rank on average in each phase, as many sent. MB of memory of the rank "
      "that\n"
      "has most, beside the formula; what the peak of its process grew by.\n\n");

  const double speedup = ratio(records[1], records[0], &times::step);
  double to_best = 0;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const double to_this = ratio(records[0], records[i], &times::iteration);
    fmt::print("iteration of owner to that of {}: {:.3f}\n", layouts[i].name, to_this);
    figures["iteration_ratio_to_" + layouts[i].name] = to_this;
    to_best = std::max(to_best, to_this);
  }
  fmt::print("step of owner {:.2f} times as fast as rows; memory within {:.2f}% of the formula\n",
             speedup, 100 * largest_error);
  figures["step_speedup_vs_gather"] = speedup;
  figures["iteration_ratio_to_best"] = to_best;
  figures["memory_error_max"] = largest_error;
  write_figures(how.json_path, figures);
}

void run(mfsdp::mpi_collective comm, const setting& how) {
  const mfsdp::model_spec spec = transformer(how);
  const memory_formula sizes(spec, comm.size());
  stand_in compute(how, comm.rank());
  const mfsdp::adamw elementwise{.learning_rate = 1e-3f};
  const mfsdp::muon matrix{};
  const mfsdp::mixed local{matrix, elementwise};
  const mfsdp::mixed gathering{mfsdp::gathered{matrix}, elementwise};
  mfsdp::model_options whole;
  whole.reshard_after_forward = false;

  const std::vector<std::function<layout()>> makers{
      [&] {
        return make_layout("owner", spec, comm, mfsdp::owner_placement{}, local, {}, compute,
                           sizes.owner());
      },
      [&] {
        return make_layout("rows", spec, comm, mfsdp::row_placement{}, gathering, {}, compute,
                           sizes.rows());
      },
      [&] {
        return make_layout("zero1", spec, comm, mfsdp::owner_placement{}, local, whole, compute,
                           sizes.zero1());
      },
      [&] {
        return make_layout("replicated", spec, comm, mfsdp::replicated_placement{}, local, {},
                           compute, sizes.replicated());
      }};

  // Each is built and run once before the next, to see what the process needs for it.
  std::vector<layout> layouts;
  std::vector<record> records;
  for (const auto& make : makers) {
    const double before = process_bytes("VmRSS");
    forget_peak();
    layouts.push_back(make());
    layouts.back().iterate();
    const mfsdp::memory_usage usage = layouts.back().memory();
    record& r = records.emplace_back();
    r.process_growth = over_ranks(process_bytes("VmHWM") - before, MPI_MAX);
    r.resident = over_ranks(static_cast<double>(usage.resident()), MPI_MAX);
    r.total = over_ranks(static_cast<double>(usage.total()), MPI_MAX);
  }

  for (int round = 0; round < how.rounds; ++round) {
    for (std::size_t turn = 0; turn < layouts.size(); ++turn) {
      const std::size_t i = (turn + static_cast<std::size_t>(round)) % layouts.size();
      std::map<phase, double> before;
      for (const auto& [where, label] : moving_phases) {
        before[where] = static_cast<double>(layouts[i].moved(where).received);
      }
      records[i].rounds.push_back(layouts[i].iterate());
      for (const auto& [where, label] : moving_phases) {
        const double after = static_cast<double>(layouts[i].moved(where).received);
        records[i].moved[where] = over_ranks(after - before[where], MPI_SUM);
      }
    }
  }
  if (comm.rank() == 0) report(layouts, records, how, sizes);
}

}  // namespace

int main(int argc, char** argv) {
  mfsdp::mpi_world job;
  CLI::App app{
      "Iterations of one transformer's parameters in four layouts, side by side.\n"
      "  mpirun -n 4 build/release/bench/step",
      "step"};
  setting how;
  const auto add = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add("--layers", how.layers, "transformer blocks");
  add("--width", how.width, "of the model; the hidden layer is four times as wide");
  add("--vocabulary", how.vocabulary, "rows of the embedding and of the head");
  add("--context", how.context, "rows of the position embedding");
  add("--tokens", how.tokens, "of the stand-in, on each rank");
  add("--rounds", how.rounds, "iterations of each layout that count");
  app.add_option("--json", how.json_path, "write the figures to this file");
  add_message_options(app, how.engine);
  return run_job(app, argc, argv, job, [&] {
    mfsdp::mpi_world(MPI_COMM_WORLD, how.engine).run([&](const mfsdp::mpi_collective& comm) {
      run(comm, how);
    });
  });
}
