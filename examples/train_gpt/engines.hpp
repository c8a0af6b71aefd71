// What carries the ranks: threads of this process, or processes of an MPI job. Each is one source
// file, compiled on its own, since all that is trained is compiled for each of them.
#pragma once

#include <functional>
#include <optional>

#include "training.hpp"

namespace train_gpt {

struct engine {
  int ranks = 0;
  std::optional<int> process{};  // the rank that this process is, if each rank is one
  std::function<outcome(const settings&, const text&, const progress&)> train{};

  // Whether this process is the one that prints.
  [[nodiscard]] bool speaks() const { return process.value_or(0) == 0; }
};

engine threads(int ranks);

// Starts MPI, which ends with the last copy of this. Placement owner only: compiling the others as
// well would take longer than it is worth. Errors: std::runtime_error in a build without MPI.
engine processes();

}  // namespace train_gpt
