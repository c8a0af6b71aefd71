// What the tests of a cuda_backend share.
#pragma once

#include <string>
#include <vector>

#include "conformance/host_copy.hpp"
#include "mfsdp/backend/cuda.hpp"

namespace mfsdp_test {

template <class T>
mfsdp::device_buffer<T> on_device(const mfsdp::cuda_backend& backend,
                                  const std::vector<T>& values) {
  auto buffer = backend.template allocate<T>(std::ssize(values));
  to_backend(backend, values, buffer.span());
  return buffer;
}

// What f throws says; empty if it throws nothing.
template <class Error, class F>
std::string what_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace mfsdp_test
