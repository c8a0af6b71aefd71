// Ranks as threads with an emulated GPU each, for conformance suites and tests.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/collective/nccl_world.hpp"

namespace mfsdp_test {

inline emulation::configuration machine_of(int devices) {
  emulation::configuration how;
  how.devices = devices;
  return how;
}

// Operands of suites are in host memory.
class emulated_gpus {
 public:
  explicit emulated_gpus(int ranks, mfsdp::nccl_options options = {})
      : machine_(machine_of(ranks)), ranks_(devices(ranks), std::move(options)) {}

  [[nodiscard]] int size() const { return ranks_.size(); }
  template <class Body>
  void run(Body&& body) {
    ranks_.run(std::forward<Body>(body));
  }

 private:
  static std::vector<int> devices(int ranks) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  emulation::session machine_;
  mfsdp::nccl_threads ranks_;
};

inline mfsdp::cuda_backend backend_of(const mfsdp::nccl_collective& collective) {
  return mfsdp::cuda_backend(collective.device(), collective.compute_stream());
}

// Operands are in the memory of the devices.
class emulated_gpus_with_memory : public emulated_gpus {
 public:
  using emulated_gpus::emulated_gpus;
  [[nodiscard]] static mfsdp::cuda_backend memory(const mfsdp::nccl_collective& collective) {
    return backend_of(collective);
  }
};

// Small scratch, so that sums are made in parts; and less to poison.
inline mfsdp::nccl_options tight_options() {
  mfsdp::nccl_options options;
  options.scratch_bytes = mfsdp::index_t{64} << 10;
  return options;
}

}  // namespace mfsdp_test
