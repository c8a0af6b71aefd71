// What the options of the trainers take: nothing that ends in a crash, a loss that is no number, or
// years of work.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace train_gpt {

inline const CLI::Range one_or_more(1, 1 << 20);
inline const CLI::Range none_or_more(0, 1 << 20);

// CLI::NonNegativeNumber takes nan.
inline const CLI::Validator rate(
    [](std::string& text) -> std::string {
      double value = 0;
      if (CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0) return {};
      return "'" + text + "' is no finite number from 0 on";
    },
    "RATE");

}  // namespace train_gpt
