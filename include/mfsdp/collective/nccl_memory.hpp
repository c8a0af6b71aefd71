// nccl_memory: scratch of the NCCL engine on its device, and where operands in host memory pass
// through.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/cuda/runtime.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Memory of a device that is taken and given back in the order of a stream, so that neither waits
// for what is under way. Move-only. Errors: device_error.
class stream_memory {
 public:
  stream_memory() = default;
  stream_memory(cudaStream_t in, std::size_t bytes) : bytes_(bytes) {
    void* fresh = nullptr;
    cuda::require(cudaMallocAsync(&fresh, bytes, in), "cudaMallocAsync");
    memory_ = std::unique_ptr<void, give_back>(fresh, give_back{in});
  }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(memory_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct give_back {
    cudaStream_t in;
    void operator()(void* old) const { (void)cudaFreeAsync(old, in); }
  };
  std::unique_ptr<void, give_back> memory_{nullptr, give_back{nullptr}};
  std::size_t bytes_ = 0;
};

// What an operand in host memory passes through: its copy in pinned memory and on the device.
struct staging_block {
  cuda::pinned_buffer<std::byte> host;
  stream_memory device;
};

// Whether memory is a device's. Everything else is copied through a staging_block.
[[nodiscard]] inline bool is_device_memory(const void* memory) {
  cudaPointerAttributes attributes{};
  cuda::require(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
