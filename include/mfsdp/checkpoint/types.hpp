// The types of elements that checkpoints store: the one table of their names and widths.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "mfsdp/dtype.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

template <StoredElement T>
struct stored_type {
  using element = T;
  std::string_view dtype;  // as safetensors files name it
};

inline constexpr std::tuple stored_types{stored_type<float>{"F32"}, stored_type<bfloat16>{"BF16"},
                                         stored_type<float16>{"F16"}};

// Calls f(entry of the table) for the first one that `is_it` holds of. Errors: std::logic_error
// for a type that the table does not have, which would else be stored as another.
template <class Predicate, class F>
void with_stored_type(std::string_view name, Predicate&& is_it, F&& f) {
  const auto tried = [&](const auto& entry) {
    if (!is_it(entry)) return false;
    f(entry);
    return true;
  };
  if (!std::apply([&](const auto&... entry) { return (tried(entry) || ...); }, stored_types)) {
    throw std::logic_error(fmt::format("checkpoints have no type '{}'", name));
  }
}

// By the name that type_name gives.
template <class F>
void with_type(std::string_view type, F&& f) {
  with_stored_type(
      type, [&]<class T>(const stored_type<T>&) { return type_name<T>() == type; },
      std::forward<F>(f));
}

[[nodiscard]] inline std::string dtype_of(std::string_view type) {
  std::string dtype;
  with_type(type, [&](const auto& entry) { dtype = entry.dtype; });
  return dtype;
}

[[nodiscard]] inline index_t bytes_of_type(std::string_view type) {
  index_t bytes = 0;
  with_type(type, [&]<class T>(const stored_type<T>&) { bytes = sizeof(T); });
  return bytes;
}

// Calls f with a value of the type that a dtype stands for.
template <class F>
void with_dtype(std::string_view dtype, F&& f) {
  with_stored_type(
      dtype, [&](const auto& entry) { return entry.dtype == dtype; },
      [&]<class T>(const stored_type<T>&) { f(T{}); });
}

[[nodiscard]] inline bool is_stored_dtype(std::string_view dtype) {
  return std::apply([&](const auto&... entry) { return ((entry.dtype == dtype) || ...); },
                    stored_types);
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
