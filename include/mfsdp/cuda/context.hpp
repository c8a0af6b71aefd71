// What the copies of a backend share: one device, one stream, its memory and its products.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "mfsdp/cuda/launch.hpp"
#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/cuda/products.hpp"
#include "mfsdp/cuda/recorder.hpp"

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
  // Waits, so that nothing is queued any more that uses what is freed.
  ~context() { (void)cudaStreamSynchronize(stream_); }
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const product_options& options() const { return products_->options(); }

  [[nodiscard]] memory_pool& pool() { return pool_; }
  // From now on all calls are recorded, if not null. They must come from one thread.
  void record(recorder* by) { recorder_ = by; }

  [[nodiscard]] void* take(std::size_t bytes) {
    const device_scope here(device_);
    return recorder_ != nullptr && bytes != 0 ? recorder_->take(bytes) : pool_.take(bytes);
  }
  void give(void* block, std::size_t bytes) {
    if (recorder_ == nullptr || !recorder_->give(block)) pool_.give(block, bytes);
  }

  template <class Body>
  void launch(const Body& body) {
    const device_scope here(device_);
    const Body* stored = nullptr;
    if (recorder_ != nullptr) {
      recorder_->call("kernel", &body_name<Body>, work_of(body));
      stored = recorder_->argument(body);
      if (!recorder_->queues()) return;
    }
    kernel<Body>::launch(stream_, body, stored);
  }

  template <class Scale>
  void multiply(const product_key& key, Scale alpha, const void* a, const void* b, Scale beta,
                const void* c, void* d) {
    const device_scope here(device_);
    if (recorder_ == nullptr) return products_->run(stream_, key, &alpha, a, b, &beta, c, d);
    recorder_->call("product", key.type, key.op_a, key.op_b, key.m, key.n, key.k, a, b, c, d);
    const Scale* const stored_alpha = recorder_->argument(alpha);
    const Scale* const stored_beta = recorder_->argument(beta);
    if (!recorder_->queues()) return;
    if (!recorder_->stores()) return products_->run(stream_, key, &alpha, a, b, &beta, c, d);
    product_key recorded = key;
    recorded.scales_on_device = true;
    products_->run(stream_, recorded, stored_alpha, a, b, stored_beta, c, d);
  }

  // From and to the memory of a device or of the host. Blocks until it is done if one side is the
  // host's, which may use it at once.
  void copy(const void* from, void* to, std::size_t bytes) {
    if (bytes == 0) return;
    const device_scope here(device_);
    const bool host = !on_device(from) || !on_device(to);
    if (recorder_ != nullptr) {
      if (host) recorder::refuse("copy from or to host memory");
      recorder_->call("copy", from, to, bytes);
      if (!recorder_->queues()) return;
    }
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
    if (host) wait();
  }

  void clear(void* x, std::size_t bytes) {
    const device_scope here(device_);
    if (recorder_ != nullptr) {
      recorder_->call("clear", x, bytes);
      if (!recorder_->queues()) return;
    }
    require(cudaMemsetAsync(x, 0, bytes, stream_), "cudaMemsetAsync");
  }

  [[nodiscard]] static bool on_device(const void* p) {
    cudaPointerAttributes seen{};
    require(cudaPointerGetAttributes(&seen, p), "cudaPointerGetAttributes");
    return seen.type == cudaMemoryTypeDevice;
  }

  // Blocks until the number is there.
  [[nodiscard]] double read(const double* number) {
    if (recorder_ != nullptr) recorder::refuse("read a sum of squares");
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
  // One object for each kind of body, to know it by.
  template <class Body>
  static constexpr char body_name = 0;

  template <class Body>
  static index_t work_of(const Body& body) {
    if constexpr (requires { body.sums(); }) {
      return body.sums();
    } else {
      return body.size();
    }
  }

  int device_;
  std::optional<cuda::stream> own_;
  cudaStream_t stream_ = nullptr;
  memory_pool pool_;
  recorder* recorder_ = nullptr;
  std::optional<products> products_;
  std::mutex number_mutex_;
  std::optional<pinned_buffer<double>> number_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
