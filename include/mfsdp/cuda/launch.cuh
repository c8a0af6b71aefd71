// The definition of kernel<Body>::launch. Include it in the one .cu file that instantiates kernels.
#pragma once

#include <algorithm>

#include "mfsdp/cuda/launch.hpp"

#if !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "mfsdp: compile kernels with nvcc --expt-relaxed-constexpr"
#endif

namespace mfsdp::inline MFSDP_ABI::cuda {

namespace detail {

inline constexpr int threads_per_block = 256;

template <class Body>
concept SummingBody = requires(const Body& body) { body.sums(); };

template <class Body>
__device__ void run_thread(const Body& body) {
  const index_t thread = index_t{blockIdx.x} * threads_per_block + threadIdx.x;
  const index_t threads = index_t{gridDim.x} * threads_per_block;
  if constexpr (SummingBody<Body>) {
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    for (index_t i = thread / lanes; i < body.sums(); i += threads / lanes) {
      double sum = body.lane(i, lane);
      for (int half = lanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
      if (lane == 0) body.store(i, sum);
    }
  } else {
    for (index_t i = thread; i < body.size(); i += threads) body(i);
  }
}

template <class Body>
MFSDP_KERNEL void run_body(const __grid_constant__ Body body, const Body* stored) {
  if (stored) {
    run_thread(*stored);
  } else {
    run_thread(body);
  }
}

}  // namespace detail

template <class Body>
void kernel<Body>::launch(cudaStream_t stream, const Body& body, const Body* stored) {
  index_t threads = 0;
  if constexpr (detail::SummingBody<Body>) {
    threads = body.sums() * lanes;
  } else {
    threads = body.size();
  }
  if (threads == 0) return;
  constexpr index_t most_blocks = index_t{1} << 20;
  const index_t blocks = (threads + detail::threads_per_block - 1) / detail::threads_per_block;
  detail::run_body<<<static_cast<unsigned>(std::min(blocks, most_blocks)),
                     detail::threads_per_block, 0, stream>>>(body, stored);
  require(cudaGetLastError(), "launch of a kernel");
}

}  // namespace mfsdp::inline MFSDP_ABI::cuda
