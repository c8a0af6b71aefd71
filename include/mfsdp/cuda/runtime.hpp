// Streams and events of the CUDA runtime, what the backend and the NCCL engine share. The only
// includer of cuda_runtime_api.h: a host compiler is enough.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// Errors: device_error that names the call and the runtime's reason.
inline void require(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return;
  throw device_error(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

// Makes a device the calling thread's, and the former one again at the end of the scope. Errors:
// device_error.
class device_scope {
 public:
  explicit device_scope(int device) {
    require(cudaGetDevice(&before_), "cudaGetDevice");
    if (device == before_) return;
    require(cudaSetDevice(device), "cudaSetDevice");
    switched_ = true;
  }
  // Setting a device makes a context on it, so only where there is something to undo.
  ~device_scope() {
    if (switched_) (void)cudaSetDevice(before_);
  }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

 private:
  int before_ = 0;
  bool switched_ = false;
};

// A point in a stream that other streams can wait for. Move-only. Errors: device_error.
class event {
 public:
  event() : event(cudaEventDisableTiming) {}
  // cudaEventDefault for one that is timed.
  explicit event(unsigned flags) {
    cudaEvent_t fresh = nullptr;
    require(cudaEventCreateWithFlags(&fresh, flags), "cudaEventCreateWithFlags");
    event_.reset(fresh);
  }

  [[nodiscard]] cudaEvent_t get() const { return event_.get(); }
  void record(cudaStream_t in) const { require(cudaEventRecord(get(), in), "cudaEventRecord"); }
  // What is queued in the stream from here on comes after the event. Does not block the host.
  void precede(cudaStream_t later) const {
    require(cudaStreamWaitEvent(later, get(), 0), "cudaStreamWaitEvent");
  }
  // Whether all that it was recorded after is done.
  [[nodiscard]] bool done() const {
    const cudaError_t code = cudaEventQuery(get());
    if (code == cudaErrorNotReady) return false;
    require(code, "cudaEventQuery");
    return true;
  }
  // Blocks the host until all that it was recorded after is done.
  void wait() const { require(cudaEventSynchronize(get()), "cudaEventSynchronize"); }
  // Between two timed events that are done.
  [[nodiscard]] float milliseconds_since(const event& earlier) const {
    float passed = 0;
    require(cudaEventElapsedTime(&passed, earlier.get(), get()), "cudaEventElapsedTime");
    return passed;
  }

 private:
  struct destroy {
    void operator()(cudaEvent_t old) const { (void)cudaEventDestroy(old); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, destroy> event_;
};

// A queue of the current device's work, apart from the default stream. Move-only. Errors:
// device_error.
class stream {
 public:
  stream() {
    cudaStream_t fresh = nullptr;
    require(cudaStreamCreateWithFlags(&fresh, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(fresh);
  }

  [[nodiscard]] cudaStream_t get() const { return stream_.get(); }

 private:
  struct destroy {
    void operator()(cudaStream_t old) const { (void)cudaStreamDestroy(old); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, destroy> stream_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
