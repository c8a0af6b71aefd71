// What a person sees of a run: a progress line, tables, a picture.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "training.hpp"

namespace train_gpt {

inline std::string minutes(double seconds) {
  const int whole = static_cast<int>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// One line that is rewritten on a terminal; every tenth of the run elsewhere.
class progress_line {
 public:
  progress_line(std::string title, const settings& how, bool terminal)
      : title_(std::move(title)),
        steps_(how.stop_after > 0 ? how.stop_after : how.steps),
        characters_(static_cast<double>(how.sequences) * how.shape.context),
        terminal_(terminal) {}

  [[nodiscard]] progress callbacks() {
    return {[this](int step, double loss, double seconds) { show(step, loss, seconds); },
            [this](int, double loss) { validation_ = loss; }};
  }

 private:
  void show(int step, double loss, double seconds) {
    const bool last = step == steps_;
    ++taken_;
    if (!terminal_ && step % std::max(1, steps_ / 10) != 0 && !last) return;
    const double rate = taken_ / seconds;
    fmt::print("{}{}  step {}/{}  loss {:.3f}{}  {:.0f} chars/s  {} left {}", terminal_ ? "\r" : "",
               title_, step, steps_, loss,
               validation_ > 0 ? fmt::format("  validation {:.3f}", validation_) : "",
               rate * characters_, minutes((steps_ - step) / rate),
               !terminal_ || last ? "\n" : " ");
    std::fflush(stdout);
  }

  std::string title_;
  int steps_;
  int taken_ = 0;  // of them, by this run
  double characters_;
  bool terminal_;
  double validation_ = 0;
};

inline std::string kib(mfsdp::index_t bytes) {
  return fmt::format("{:.0f}", bytes / 1024.0);
}

// One row a rank: what it owns and what it moved in all steps and validations together.
inline std::string rank_table(const outcome& result) {
  std::string table = fmt::format(
      "{:>4} {:>9} {:>13} {:>14} {:>23} {:>23} {:>11}\n{:>4} {:>9} {:>13} {:>14} {:>23} {:>23} "
      "{:>11}\n",
      "rank", "matrices", "resident KiB", "live peak KiB", "forward MiB in / out",
      "backward MiB in / out", "step bytes", "", "owned", "", "", "", "", "");
  const auto mib = [](const mfsdp::traffic& t) {
    return fmt::format("{:.1f} / {:.1f}", static_cast<double>(t.received) / (1 << 20),
                       static_cast<double>(t.sent) / (1 << 20));
  };
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const rank_account& account = result.ranks[rank];
    const auto moved = [&](mfsdp::phase p) { return account.moved[static_cast<std::size_t>(p)]; };
    table += fmt::format("{:>4} {:>9} {:>13} {:>14} {:>23} {:>23} {:>11}\n", rank, account.matrices,
                         kib(account.memory.resident()), kib(account.memory.total()),
                         mib(moved(mfsdp::phase::forward)), mib(moved(mfsdp::phase::backward)),
                         moved(mfsdp::phase::step).received + moved(mfsdp::phase::step).sent);
  }
  return table;
}

struct curve {
  std::string title;
  const outcome* run;
};

// Draws loss against steps with gnuplot; dots are validation losses. Returns false, and says so,
// where gnuplot is missing.
inline bool draw_losses(const std::string& folder, const std::vector<curve>& curves,
                        double bigram) {
  std::string plot;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const std::string training = fmt::format("{}/loss.{}.dat", folder, i);
    const std::string validation = fmt::format("{}/validation.{}.dat", folder, i);
    std::ofstream losses(training);
    for (std::size_t step = 0; step < curves[i].run->losses.size(); ++step) {
      losses << step + 1 << ' ' << curves[i].run->losses[step] << '\n';
    }
    std::ofstream points(validation);
    for (const validation_point& p : curves[i].run->validation)
      points << p.step << ' ' << p.loss << '\n';
    plot += fmt::format(
        "'{}' using 1:2 with lines lw 1 lc {} title '{}, training', "
        "'{}' using 1:2 with linespoints lw 2 pt 7 lc {} title '{}, validation', ",
        training, i + 1, curves[i].title, validation, i + 1, curves[i].title);
  }
  std::ofstream script(folder + "/loss.gp");
  script << "set terminal pngcairo size 1000,600 font 'sans,11'\n"
         << "set output '" << folder << "/loss.png'\n"
         << "set xlabel 'steps'\nset ylabel 'nats per byte'\nset grid\nset yrange [1:4.5]\n"
         << "plot " << plot << bigram
         << " with lines dt 2 lc rgb 'gray40' title 'bigram baseline'\n";
  script.close();
  const std::string command = "gnuplot '" + folder + "/loss.gp'";
  if (std::system(command.c_str()) == 0) return true;
  fmt::print(stderr, "no picture: gnuplot failed or is not installed\n");
  return false;
}

}  // namespace train_gpt
