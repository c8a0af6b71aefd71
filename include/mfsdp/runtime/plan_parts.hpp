// What ranks and sites must agree on, in parts, so that a difference has a name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  enum part : std::size_t {
    model = static_cast<std::size_t>(plan_topic::model),
    precision = static_cast<std::size_t>(plan_topic::precision),
    optimizers = static_cast<std::size_t>(plan_topic::optimizers),
    placement = static_cast<std::size_t>(plan_topic::placement),
    options,
    count
  };

  template <class Rules>
  plan_parts(std::string_view precision_text, const Rules& rules) {
    texts_[precision] = precision_text;
    std::apply([&](const auto&... rule) { ((texts_[optimizers] += options_of(rule) + "\n"), ...); },
               optimizer_members(rules));
  }

  // Several plans of one model, on different numbers of ranks, may be added.
  void add(const plan& p) {
    for_each_plan_piece(p, [&](plan_topic topic, std::string_view piece) {
      texts_[static_cast<std::size_t>(topic)] += piece;
    });
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
