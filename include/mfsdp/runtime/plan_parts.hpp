// What ranks and sites must agree on, in parts, so that a difference has a name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/fnv1a.hpp"
#include "mfsdp/plan.hpp"
#include "mfsdp/plan_text.hpp"
#include "mfsdp/planner.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

class plan_parts {
 public:
  // In the order in which one follows from those before it: of several differences the first one
  // counts.
  enum part : std::size_t { model, precision, optimizers, placement, options, count };

  template <class Rules>
  plan_parts(std::string_view precision_text, const Rules& rules) {
    texts_[precision] = precision_text;
    std::apply([&](const auto&... rule) { ((texts_[optimizers] += options_of(rule) + "\n"), ...); },
               optimizer_members(rules));
  }

  // Several plans of one model, on different numbers of ranks, may be added.
  void add(const plan& p) {
    std::istringstream lines(to_text(p));
    for (std::string line; std::getline(lines, line);) {
      line += '\n';
      std::istringstream words(line);
      std::string word;
      words >> word;
      if (word == "bytes") {
        texts_[precision] += line;
      } else if (word == "optimizer" || word == "gathering") {
        texts_[optimizers] += line;
      } else if (word == "ranks" || word == "placement" || word == "item") {
        texts_[placement] += line;
      } else if (word == "tensor") {  // its fifth word is the optimizer
        for (int i = 1; words >> word; ++i) {
          texts_[i == 4 && word != "frozen" ? optimizers : model] += ' ' + word;
        }
      } else {
        texts_[model] += line;
      }
    }
  }
  void add_options(std::string_view text) { texts_[options] += text; }

  // A word for each part, to compare.
  [[nodiscard]] std::vector<std::uint64_t> hashes() const {
    std::vector<std::uint64_t> all;
    for (const std::string& text : texts_) all.push_back(fnv1a(text));
    return all;
  }

  static constexpr std::array<std::string_view, count> names{
      "the model: its units, tensors, shapes or what is frozen", "the precision",
      "the optimizers: their options, or which tensors they update", "the placement",
      "model_options: prefetch, reshard_after_forward or rounding_seed"};

 private:
  std::array<std::string, count> texts_;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
