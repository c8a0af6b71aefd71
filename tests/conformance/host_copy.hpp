// How the conformance suites see the memory of a backend, which the host need not be able to touch:
// as copies, made by the backend.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace mfsdp_test {

template <class T, class B>
std::vector<std::remove_const_t<T>> on_host(B& backend, std::span<T> x) {
  std::vector<std::remove_const_t<T>> values(x.size());
  backend.copy(std::span<const T>(x), std::span(values));
  return values;
}

template <class T, class B>
void to_backend(B& backend, const std::vector<T>& values, std::span<T> x) {
  backend.copy(std::span<const T>(values), x);
}

// n elements of value_of(0), value_of(1), ...
template <class T, class F>
std::vector<T> host_values(std::ptrdiff_t n, F value_of) {
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(n));
  for (std::ptrdiff_t i = 0; i < n; ++i) values.push_back(value_of(i));
  return values;
}

}  // namespace mfsdp_test
