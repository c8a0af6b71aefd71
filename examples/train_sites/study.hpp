// The grid behind the demo: rates, then seeds, ranks and periods at the best of them.
#pragma once

#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "methods.hpp"

namespace train_sites {

// Losses by run, kept in a file, so that a study that was stopped goes on where it was.
class record {
 public:
  explicit record(const std::string& path) : path_(path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      const auto tab = line.rfind('\t');
      // A line that a stop has cut short has no end mark.
      if (tab == std::string::npos || !line.ends_with(';')) continue;
      losses_[line.substr(0, tab)] = std::stod(line.substr(tab + 1));
    }
  }

  // The validation loss of a run, trained if it is not on record.
  double loss(const method& m, settings how, const text& data) {
    if (m.sites == 2) how.ranks = {2, 2};
    const std::string key = fmt::format(
        "{}\trate {:g}\trank {}\tperiod {}\tsteps {}\tseed {}\t{} sites, {} sequences, {} x {} x "
        "{}, rest "
        "{:g}, {} bytes",
        m.name, how.rate, how.rank, how.period, how.steps, how.seed, how.sites(), how.sequences,
        how.shape.layers, how.shape.width, how.shape.context, how.elementwise_rate,
        data.training().size());
    const auto known = losses_.find(key);
    if (known != losses_.end()) return known->second;
    const double loss = train(m, how, data).validation;
    fmt::print("{}\t{:.4f}\n", key, loss);
    std::fflush(stdout);
    std::ofstream(path_, std::ios::app) << fmt::format("{}\t{:.6f};\n", key, loss);
    return losses_[key] = loss;
  }

 private:
  std::string path_;
  std::map<std::string, double> losses_;
};

inline void study(const std::vector<method>& all, const settings& base, const text& data,
                  const std::string& folder) {
  record runs(folder + "/lordo_study.tsv");
  std::map<std::string, double> best;
  for (const method& m : all) {
    double least = std::numeric_limits<double>::infinity();
    for (const double rate : m.rates) {
      settings how = base;
      how.rate = rate;
      const double loss = runs.loss(m, how, data);
      if (loss < least) {
        least = loss;
        best[m.name] = rate;
      }
    }
    if (best[m.name] == m.rates.front() || best[m.name] == m.rates.back()) {
      fmt::print("note: the best rate of {} is at the edge of its grid\n", m.name);
    }
  }
  const auto at_best = [&](const method& m, auto change) {
    settings how = base;
    how.rate = best[m.name];
    change(how);
    return runs.loss(m, how, data);
  };
  std::string table = fmt::format("{:<24} {:>8} {:>8} {:>8} {:>8}\n", "method", "rate", "seed 1",
                                  "seed 2", "seed 3");
  for (const method& m : all) {
    table += fmt::format("{:<24} {:>8g}", m.name, best[m.name]);
    for (const std::uint64_t seed : {1, 2, 3}) {
      table += fmt::format(" {:>8.3f}", at_best(m, [&](settings& how) { how.seed = seed; }));
    }
    table += '\n';
  }
  const auto vary = [&](std::string_view title, const std::vector<int>& values,
                        const std::vector<std::string>& names, auto set) {
    table += fmt::format("\n{:<24}", title);
    for (const int value : values) table += fmt::format(" {:>8}", value);
    table += '\n';
    for (const method& m : all) {
      if (std::ranges::find(names, m.name) == names.end()) continue;
      table += fmt::format("{:<24}", m.name);
      for (const int value : values) {
        table += fmt::format(" {:>8.3f}", at_best(m, [&](settings& how) { set(how, value); }));
      }
      table += '\n';
    }
  };
  vary("rank", {4, 8, 16, 32},
       {"lowrank_ddp", "lordo_local", "lordo_global_no_qhm", "lordo_global", "lordo_random",
        "local_muon_lowrank"},
       [](settings& how, int rank) { how.rank = rank; });
  vary("period", {8, 32, 128},
       {"local_adam", "diloco", "lordo_local", "lordo_global", "local_muon", "local_muon_lowrank"},
       [](settings& how, int period) { how.period = period; });
  std::ofstream(folder + "/lordo_study.txt") << table;
  fmt::print("\n{}", table);
}

}  // namespace train_sites
