// What optimizers around another optimizer share: a word in front of its name, states after its
// own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace lordo::inline MFSDP_ABI {

namespace contract {

// The door of averaged and local_steps.
template <class O>
struct check_inner {
  static_assert(mfsdp::Optimizer<O>,
                "lordo: 'inner' is no Optimizer; used alone, it says which member it lacks");
  static_assert(!mfsdp::PeriodicOptimizer<O>,
                "lordo: 'inner' is to know one site, but this optimizer exchanges already");
};

}  // namespace contract

namespace detail {

template <std::size_t N>
struct literal {
  std::array<char, N> text;
  consteval literal(const char (&from)[N]) { std::copy_n(from, N, text.begin()); }
};

template <literal Prefix, class O>
inline constexpr auto prefixed_text = [] {
  constexpr std::size_t prefix = Prefix.text.size() - 1;
  constexpr std::string_view name = O::name;
  std::array<char, prefix + name.size()> text{};
  std::copy(name.begin(), name.end(), std::copy_n(Prefix.text.begin(), prefix, text.begin()));
  return text;
}();

// "local adamw" for prefixed_name<"local ", adamw>.
template <literal Prefix, class O>
inline constexpr std::string_view prefixed_name{prefixed_text<Prefix, O>.data(),
                                                prefixed_text<Prefix, O>.size()};

// How many states a rule keeps of a parameter, whatever its shape.
template <class O>
inline constexpr std::size_t state_count =
    std::tuple_size_v<decltype(std::declval<const O&>().states(mfsdp::matrix_shape{}))>;

// The states of a rule, exact as all states are of which means are taken.
template <class O>
[[nodiscard]] constexpr std::array<mfsdp::state_spec, state_count<O>> exact_states(
    const O& rule, mfsdp::matrix_shape shape) {
  std::array<mfsdp::state_spec, state_count<O>> all = rule.states(shape);
  for (mfsdp::state_spec& state : all) state.exact = true;
  return all;
}

// All elements of the parts, in order.
template <class T, std::size_t... N>
[[nodiscard]] constexpr std::array<T, (N + ...)> joined(const std::array<T, N>&... parts) {
  std::array<T, (N + ...)> all{};
  auto at = all.begin();
  ((at = std::copy(parts.begin(), parts.end(), at)), ...);
  return all;
}

template <std::size_t First, std::size_t Count, class T, std::size_t N>
[[nodiscard]] constexpr std::array<T, Count> part(const std::array<T, N>& all) {
  static_assert(First + Count <= N);
  std::array<T, Count> some{};
  std::copy_n(all.begin() + First, Count, some.begin());
  return some;
}

}  // namespace detail

}  // namespace lordo::inline MFSDP_ABI
