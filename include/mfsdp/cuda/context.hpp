// What the copies of a backend share: one device, one stream, its memory and its products.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "mfsdp/cuda/launch.hpp"
#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/cuda/products.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// Calls from several threads are safe. All work is queued on the one stream. Errors: device_error.
class context {
 public:
  // On the caller's stream, which must outlive this, or on one of its own.
  context(int device, std::optional<cudaStream_t> theirs, product_options options)
      : device_(device) {
    const device_scope here(device);
    if (!theirs) own_.emplace();
    stream_ = theirs ? *theirs : own_->get();
    products_.emplace(options, pool_);
    number_.emplace(1);
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const product_options& options() const { return products_->options(); }

  [[nodiscard]] void* take(std::size_t bytes) {
    const device_scope here(device_);
    return pool_.take(bytes);
  }
  void give(void* block, std::size_t bytes) { pool_.give(block, bytes); }

  template <class Body>
  void launch(const Body& body) {
    const device_scope here(device_);
    kernel<Body>::launch(stream_, body, nullptr);
  }

  template <class Scale>
  void multiply(const product_key& key, Scale alpha, const void* a, const void* b, Scale beta,
                const void* c, void* d) {
    const device_scope here(device_);
    products_->run(stream_, key, &alpha, a, b, &beta, c, d);
  }

  // From and to the memory of a device or of the host. Blocks until it is done if one side is the
  // host's, which may use it at once.
  void copy(const void* from, void* to, std::size_t bytes) {
    if (bytes == 0) return;
    const device_scope here(device_);
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    if (!on_device(from) || !on_device(to)) wait();
  }

  void clear(void* x, std::size_t bytes) {
    const device_scope here(device_);
    require(cudaMemsetAsync(x, 0, bytes, stream_), "cudaMemsetAsync");
  }

  // Blocks until the number is there.
  [[nodiscard]] double read(const double* number) {
    const device_scope here(device_);
    const std::scoped_lock lock(number_mutex_);
    require(
        cudaMemcpyAsync(number_->data(), number, sizeof(double), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
    wait();
    return *number_->data();
  }

  // Blocks until all that is queued is done. Errors: also those of work that was queued before.
  void wait() const { require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  static bool on_device(const void* p) {
    cudaPointerAttributes seen{};
    require(cudaPointerGetAttributes(&seen, p), "cudaPointerGetAttributes");
    return seen.type == cudaMemoryTypeDevice;
  }

  int device_;
  std::optional<cuda::stream> own_;
  cudaStream_t stream_ = nullptr;
  memory_pool pool_;
  std::optional<products> products_;
  std::mutex number_mutex_;
  std::optional<pinned_buffer<double>> number_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
