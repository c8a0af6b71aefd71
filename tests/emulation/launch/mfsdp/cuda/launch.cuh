// Stands before the library's launch.cuh on the include path: kernel<Body>::launch on the
// emulation, for the very list of kernels that nvcc compiles. Bodies run on the host, with the sums
// of a warp.
#pragma once

#include <array>
#include <typeinfo>
#include <vector>

#include "emulation/emulation.hpp"
#include "mfsdp/cuda/launch.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

namespace detail {

template <class Body>
void run_on_host(const Body& body) {
  if constexpr (requires { body.sums(); }) {
    for (index_t i = 0; i < body.sums(); ++i) {
      std::array<double, lanes> sum{};
      for (int l = 0; l < lanes; ++l) sum[static_cast<std::size_t>(l)] = body.lane(i, l);
      for (std::size_t half = lanes / 2; half > 0; half /= 2) {
        for (std::size_t l = 0; l < half; ++l) sum[l] += sum[l + half];
      }
      body.store(i, sum[0]);
    }
  } else {
    for (index_t i = 0; i < body.size(); ++i) body(i);
  }
}

}  // namespace detail

template <class Body>
void kernel<Body>::launch(cudaStream_t stream, const Body& body, const Body* stored) {
  index_t work = 0;
  if constexpr (requires { body.sums(); }) {
    work = body.sums();
  } else {
    work = body.size();
  }
  if (work == 0) return;
  std::vector<emulation::access> accesses;
  body.operands([&](const auto* pointer, index_t elements, touch how) {
    if (elements == 0) return;
    accesses.push_back({pointer, static_cast<std::size_t>(elements) * sizeof *pointer,
                        how == touch::read ? emulation::use::read : emulation::use::write});
  });
  if (stored) accesses.push_back({stored, sizeof *stored, emulation::use::read});
  require(emulation::launch(stream, typeid(Body).name(), std::move(accesses),
                            [body, stored] { detail::run_on_host(stored ? *stored : body); }),
          "launch of a kernel");
}

}  // namespace mfsdp::inline MFSDP_ABI::cuda
