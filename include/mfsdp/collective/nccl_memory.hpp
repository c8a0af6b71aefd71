// nccl_memory: scratch of the NCCL engine on its device, and where operands in host memory pass
// through.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "mfsdp/cuda/runtime.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Memory of a device that is taken and given back in the order of a stream, so that neither waits
// for what is under way. Move-only. Errors: device_error.
class stream_memory {
 public:
  stream_memory() = default;
  stream_memory(cudaStream_t in, std::size_t bytes) : bytes_(bytes) {
    void* fresh = nullptr;
    cuda::require(cudaMallocAsync(&fresh, bytes, in), "cudaMallocAsync");
    memory_ = {fresh, give_back{in}};
  }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(memory_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct give_back {
    cudaStream_t in = nullptr;
    void operator()(void* old) const { (void)cudaFreeAsync(old, in); }
  };
  std::unique_ptr<void, give_back> memory_;
  std::size_t bytes_ = 0;
};

// Memory of the host that copies of a device reach by themselves. Move-only. Errors: device_error.
class pinned_memory {
 public:
  pinned_memory() = default;
  explicit pinned_memory(std::size_t bytes) {
    void* fresh = nullptr;
    cuda::require(cudaMallocHost(&fresh, bytes), "cudaMallocHost");
    memory_.reset(fresh);
  }

  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(memory_.get()); }

 private:
  struct give_back {
    void operator()(void* old) const { (void)cudaFreeHost(old); }
  };
  std::unique_ptr<void, give_back> memory_;
};

// What an operand in host memory passes through: its copy in pinned memory and on the device.
struct staging_block {
  pinned_memory host;
  stream_memory device;
};

// Whether memory is a device's. Everything else is copied through a staging_block.
[[nodiscard]] inline bool is_device_memory(const void* memory) {
  cudaPointerAttributes attributes{};
  cuda::require(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
