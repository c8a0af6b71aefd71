// What a person sees: tables and a picture.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "methods.hpp"
#include "train_gpt/training.hpp"

namespace train_sites {

struct result {
  const method* what;
  settings how;
  outcome run;
};

inline sizes sizes_of(const settings& how, int vocabulary) {
  train_gpt::transformer_shape shape = how.shape;
  shape.vocabulary = vocabulary;
  const auto plan = mfsdp::make_plan(train_gpt::make_spec(shape), 1, mfsdp::owner_placement{},
                                     mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}});
  sizes sum;
  for (const mfsdp::placement_item& item : plan.items) {
    if (item.divisible) {
      sum.rest += static_cast<double>(item.elements());
      continue;
    }
    sum.matrices += static_cast<double>(item.elements());
    sum.longer += static_cast<double>(how.rank * std::max(item.shape.rows, item.shape.cols));
    sum.shorter += static_cast<double>(how.rank * std::min(item.shape.rows, item.shape.cols));
  }
  return sum;
}

// Bytes that a site contributes in a step, on average.
inline double bytes_a_step(const result& r) {
  return 4 * r.run.sent / r.how.steps;
}

inline double formula_error(const result& r, const sizes& s) {
  const double expected = r.what->formula(r.how, s);
  return std::abs(r.run.sent - expected) / expected;
}

inline std::string table_of(const std::vector<result>& results) {
  const double most = bytes_a_step(results.front());
  std::string table = fmt::format("{:<52} {:>8} {:>8} {:>10} {:>9} {:>11} {:>7}\n", "method",
                                  "rate", "loss", "kB a step", "DDP over", "state numb.", "s");
  for (const result& r : results) {
    mfsdp::index_t states = 0;
    for (const auto& [name, elements] : r.run.states) states += elements;
    table += fmt::format("{:<52} {:>8g} {:>8.3f} {:>10.1f} {:>9.1f} {:>11} {:>7.1f}\n",
                         r.what->title, r.how.rate, r.run.validation, bytes_a_step(r) / 1000,
                         most / bytes_a_step(r), states, r.run.seconds);
  }
  return table;
}

// Loss against steps, and final loss against what a site sends. False, and says so, where gnuplot
// is missing.
inline bool draw(const std::string& picture, const std::vector<result>& results) {
  std::string curves;
  std::string dots;
  const std::string stem = picture.substr(0, picture.rfind('.'));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const result& r = results[i];
    const std::string data = fmt::format("{}.{}.dat", stem, i);
    std::ofstream points(data);
    for (const auto& [step, loss] : r.run.losses) points << step << ' ' << loss << '\n';
    const int style = static_cast<int>(i) + 1;
    curves += fmt::format("'{}' with lines lw 2 lc {} dt {} title '{}', ", data, style,
                          1 + static_cast<int>(i) / 8, r.what->title);
    dots += fmt::format("'-' with points pt {} ps 1.6 lw 2 lc {} notitle, ", 1 + i % 13, style);
  }
  const std::string script = stem + ".gp";
  std::ofstream file(script);
  file
      << "set terminal pngcairo noenhanced size 1500,620 font 'sans,10'\nset output '" << picture
      << "'\nset multiplot layout 1,2\nset grid\nset key font ',8'\n"
      << "set xlabel 'steps'\nset ylabel 'training loss, nats per byte'\nset yrange [1.2:2.6]\n"
      << "plot " << curves << "\nunset yrange\nunset key\nset logscale x\n"
      << "set xlabel 'kB that a site contributes, a step'\n"
      << "set ylabel 'validation loss at the end'\nset offsets graph 0.1, graph 0.35, 0.02, 0.02\n";
  for (const result& r : results) {
    file << fmt::format("set label '  {}' at {},{} font ',8'\n", r.what->name,
                        bytes_a_step(r) / 1000, r.run.validation);
  }
  file << "plot " << dots << '\n';
  for (const result& r : results) {
    file << bytes_a_step(r) / 1000 << ' ' << r.run.validation << "\ne\n";
  }
  file << "unset multiplot\n";
  file.close();
  if (std::system(("gnuplot '" + script + "'").c_str()) == 0) return true;
  fmt::print(stderr, "no picture: gnuplot failed or is not installed\n");
  return false;
}

}  // namespace train_sites
