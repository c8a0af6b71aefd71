// nccl_memory: scratch of the NCCL engine on its device, and where operands in host memory pass
// through.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/cuda/runtime.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Memory of the current device. Not of a pool of cudaMallocAsync: NCCL lets devices of one process
// write to each other's operands, and other devices may not touch such a pool. Move-only. Errors:
// device_error.
class device_memory {
 public:
  device_memory() = default;
  explicit device_memory(std::size_t bytes) : bytes_(bytes) {
    void* fresh = nullptr;
    cuda::require(cudaMalloc(&fresh, bytes), "cudaMalloc");
    memory_.reset(fresh);
  }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(memory_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct give_back {
    void operator()(void* old) const { (void)cudaFree(old); }
  };
  std::unique_ptr<void, give_back> memory_;
  std::size_t bytes_ = 0;
};

// What an operand in host memory passes through: its copy in pinned memory and on the device.
struct staging_block {
  cuda::pinned_buffer<std::byte> host;
  device_memory device;
};

// Whether memory is a device's. Everything else is copied through a staging_block.
[[nodiscard]] inline bool is_device_memory(const void* memory) {
  cudaPointerAttributes attributes{};
  cuda::require(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
