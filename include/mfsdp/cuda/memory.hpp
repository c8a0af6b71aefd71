// Memory of one device, kept for reuse.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "mfsdp/cuda/runtime.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// Blocks of device memory for the work of one stream: what is given back serves the next request of
// its size, queued later and so after all that used it. A block never moves, and a steady state
// allocates nothing. Blocks are of multiples of 256 bytes, aligned to that, and go back to the
// device when it has no memory left for another size, or with the pool. Calls from several threads
// are safe.
class memory_pool {
 public:
  memory_pool() = default;
  memory_pool(const memory_pool&) = delete;
  memory_pool& operator=(const memory_pool&) = delete;
  ~memory_pool() { release(); }

  // A block of at least this many bytes of the current device. Errors: device_error that says how
  // much was asked for and how much there is.
  [[nodiscard]] void* take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::scoped_lock lock(mutex_);
    const std::size_t size = rounded(bytes);
    if (const auto kept = kept_.find(size); kept != kept_.end() && !kept->second.empty()) {
      void* const block = kept->second.back();
      kept->second.pop_back();
      return block;
    }
    void* block = nullptr;
    cudaError_t code = cudaMalloc(&block, size);
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      release();
      code = cudaMalloc(&block, size);
    }
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      std::size_t left = 0;
      std::size_t all = 0;
      require(cudaMemGetInfo(&left, &all), "cudaMemGetInfo");
      throw device_error(fmt::format(
          "no device memory for {} bytes: {} of {} are left; spread the model over more ranks, or "
          "keep parameters or states in 16 bits",
          size, left, all));
    }
    require(code, "cudaMalloc");
    return block;
  }

  // Takes back a block of take(bytes).
  void give(void* block, std::size_t bytes) {
    if (block == nullptr) return;
    const std::scoped_lock lock(mutex_);
    kept_[rounded(bytes)].push_back(block);
  }

 private:
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

  // cudaFree waits until the device is done with a block.
  void release() {
    for (const auto& [size, blocks] : kept_) {
      for (void* block : blocks) (void)cudaFree(block);
    }
    kept_.clear();
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;
};

// Host memory that the device can read and write by itself. Move-only. Errors: device_error.
template <class T>
class pinned_buffer {
 public:
  explicit pinned_buffer(std::size_t elements) {
    void* fresh = nullptr;
    require(cudaMallocHost(&fresh, elements * sizeof(T)), "cudaMallocHost");
    data_.reset(static_cast<T*>(fresh));
  }
  [[nodiscard]] T* data() const { return data_.get(); }

 private:
  struct release {
    void operator()(T* data) const { (void)cudaFreeHost(data); }
  };
  std::unique_ptr<T[], release> data_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
