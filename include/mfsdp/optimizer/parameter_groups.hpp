// parameter_groups: each tensor goes to the first group that takes it, each group has an optimizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// Whether all of the text fits the pattern: * is any run of characters, ? any one of them, others
// are themselves. Cost: O(pattern * text): only the last * is ever tried again.
[[nodiscard]] constexpr bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;  // the last * so far
  std::size_t resume = 0;                     // where in the text the run of that * may end
  for (std::size_t t = 0; t < text.size();) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

// Of anything; whether it is an Optimizer is asked at the door of the planner.
template <class O>
inline constexpr bool updates_matrices = requires { requires O::whole_matrix; };

}  // namespace detail

// Tensors and the optimizer that updates them. Made by the for_ functions below.
template <class O>
struct parameter_group {
  optimizer_group about;
  std::function<bool(const tensor_spec&)> takes;
  O optimizer;
};

// Tensors that a predicate takes; plans and messages call them `label`. It must answer alike on all
// ranks. Errors: spec_error if the label is empty or more than one line.
template <class O>
[[nodiscard]] parameter_group<O> for_tensors(std::string_view label,
                                             std::function<bool(const tensor_spec&)> predicate,
                                             O optimizer) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 127; };
  if (label.empty() || std::any_of(label.begin(), label.end(), is_control)) {
    throw spec_error(fmt::format(
        "the label '{}' of a parameter group is empty or has control characters", label));
  }
  return {{std::string(label)}, std::move(predicate), std::move(optimizer)};
}

// Tensors whose full name "unit.tensor" fits a pattern of * and ?: "*.router", "embedding.*". A
// tied tensor goes by the name it was declared with. Errors: as for_tensors.
template <class O>
[[nodiscard]] parameter_group<O> for_names(std::string_view pattern, O optimizer) {
  return for_tensors(
      pattern,
      [pattern = std::string(pattern)](const tensor_spec& tensor) {
        return detail::matches_glob(pattern, tensor.name);
      },
      std::move(optimizer));
}

// Tensors of one role; a model need not have any, unless the optimizer updates whole matrices.
template <class O>
[[nodiscard]] parameter_group<O> for_role(tensor_role role, O optimizer) {
  return {{std::string(to_string(role)), !detail::updates_matrices<O>},
          [role](const tensor_spec& tensor) { return tensor.role == role; },
          std::move(optimizer)};
}

// All that no group before takes; nothing may be left, unless the optimizer updates whole matrices.
template <class O>
[[nodiscard]] parameter_group<O> for_rest(O optimizer) {
  return {{"rest", !detail::updates_matrices<O>},
          [](const tensor_spec&) { return true; },
          std::move(optimizer)};
}

// An OptimizerSet with one member for each group; the first group that takes a tensor has it.
//
//   parameter_groups{for_names("*.router", adamw{.learning_rate = 1e-3}),
//                    for_role(tensor_role::matrix, muon{}), for_rest(adamw{})}
//
// Two groups may have optimizers of one type; the states of a tensor, its rate and all other
// options are those of its own group alone. The planner refuses a tensor that no group takes, and a
// group of names or of a predicate that receives none: most likely a typing error.
template <class... O>
class parameter_groups {
 public:
  explicit parameter_groups(parameter_group<O>... groups)
      : members_(groups.optimizer...), groups_{groups.about...}, takes_{groups.takes...} {}

  [[nodiscard]] std::tuple<O...> members() const { return members_; }
  [[nodiscard]] std::array<optimizer_group, sizeof...(O)> groups() const { return groups_; }
  [[nodiscard]] std::size_t route(const tensor_spec& tensor) const {
    const auto first = std::find_if(takes_.begin(), takes_.end(),
                                    [&](const auto& takes) { return takes(tensor); });
    return static_cast<std::size_t>(first - takes_.begin());
  }

 private:
  std::tuple<O...> members_;
  std::array<optimizer_group, sizeof...(O)> groups_;
  std::array<std::function<bool(const tensor_spec&)>, sizeof...(O)> takes_;
};

}  // namespace mfsdp::inline MFSDP_ABI
