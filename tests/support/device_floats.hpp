// Floats in the memory of an emulated device, and kernels over them.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>

#include "emulation/emulation.hpp"
#include "mfsdp/cuda/runtime.hpp"

namespace mfsdp_test {

struct float_range {
  float* first;
  std::size_t count;
  [[nodiscard]] std::size_t bytes() const { return count * sizeof(float); }
};

// Waits for the device before it gives the memory back.
class device_floats {
 public:
  explicit device_floats(std::size_t count) : count_(count) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, count * sizeof(float)) == cudaSuccess);
    data_ = static_cast<float*>(memory);
  }
  ~device_floats() {
    cudaDeviceSynchronize();
    cudaFree(data_);
  }
  device_floats(const device_floats&) = delete;
  device_floats& operator=(const device_floats&) = delete;

  [[nodiscard]] float* get() const { return data_; }
  operator float_range() const { return {data_, count_}; }
  [[nodiscard]] float_range part(std::size_t first, std::size_t count) const {
    return {data_ + first, count};
  }
  // Of the first one, after all that is in the stream.
  [[nodiscard]] float value(const mfsdp::cuda::stream& in) const {
    float result = 0;
    REQUIRE(cudaMemcpyAsync(&result, data_, sizeof(float), cudaMemcpyDeviceToHost, in.get()) ==
            cudaSuccess);
    return result;
  }

 private:
  float* data_ = nullptr;
  std::size_t count_;
};

inline void fill_ones(const mfsdp::cuda::stream& in, float_range to) {
  emulation::launch(in.get(), "fill_ones", {{to.first, to.bytes(), emulation::use::write}}, [=] {
    for (std::size_t i = 0; i < to.count; ++i) to.first[i] = 1;
  });
}

inline void add_up(const mfsdp::cuda::stream& in, float_range from, float_range sum) {
  emulation::launch(in.get(), "add_up",
                    {{from.first, from.bytes(), emulation::use::read},
                     {sum.first, sizeof(float), emulation::use::write}},
                    [=] {
                      *sum.first = 0;
                      for (std::size_t i = 0; i < from.count; ++i) *sum.first += from.first[i];
                    });
}

}  // namespace mfsdp_test
