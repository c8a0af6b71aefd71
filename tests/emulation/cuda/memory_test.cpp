// Memory of the emulated device, pinned memory, copies. Each test plants a fault.
#include <doctest/doctest.h>

#include <cstdint>

#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "support/device_floats.hpp"
#include "support/dies.hpp"

namespace {

using emulation::configuration, emulation::expect_error, emulation::session;
using mfsdp::cuda::event, mfsdp::cuda::stream;
using mfsdp_test::add_up, mfsdp_test::device_floats, mfsdp_test::fill_ones;

struct pinned_float {
  float* at = nullptr;
  pinned_float() {
    void* memory = nullptr;
    REQUIRE(cudaMallocHost(&memory, sizeof(float)) == cudaSuccess);
    at = static_cast<float*>(memory);
  }
  ~pinned_float() { cudaFreeHost(at); }
  pinned_float(const pinned_float&) = delete;
  pinned_float& operator=(const pinned_float&) = delete;
};

}  // namespace

TEST_CASE("the host cannot touch device memory") {
  const session gpu;
  const device_floats data(1);
  volatile float* const at = data.get();
  CHECK(mfsdp_test::dies([&] { *at = 1; }));
  CHECK(mfsdp_test::dies([&] { (void)*at; }));
}

TEST_CASE("what nothing has written is NaN, and a kernel that reads it is told") {
  const session gpu;
  const stream work;
  const device_floats data(2), sum(1);
  fill_ones(work, data.part(0, 1));
  add_up(work, data, sum);
  const float result = sum.value(work);
  CHECK(result != result);
  expect_error({"kernel add_up", "not all of which have been written"});
}

TEST_CASE("memory that was freed, and beyond its end, is refused") {
  const session gpu;
  const stream work;
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 8) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 0, 12, work.get()) == cudaErrorIllegalAddress);
  expect_error({"uses 12 bytes from byte 0 on of 8 bytes of device 0", "4 too many"});
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory, 0, 8, work.get()) == cudaErrorIllegalAddress);
  expect_error({"which cudaFree has freed"});
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  expect_error({"cudaFree", "was freed by cudaFree before"});
  float here = 0;
  CHECK(cudaMemsetAsync(&here, 0, 4, work.get()) == cudaErrorIllegalAddress);
  expect_error({"is not memory of a device, nor pinned"});
}

TEST_CASE("memory is freed when its work is known to be done") {
  const session gpu;
  const stream work;
  for (const bool waits : {true, false}) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, 4) == cudaSuccess);
    fill_ones(work, {static_cast<float*>(memory), 1});
    if (waits) CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    if (waits) CHECK_NO_DEVICE_ERRORS();
  }
  expect_error({"is freed, and the host has not waited for kernel fill_ones"});
}

TEST_CASE("stream-ordered memory is there between its two calls") {
  const session gpu;
  const stream work, other;
  const event freed;
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync(&memory, 4, work.get()) == cudaSuccess);
  const mfsdp_test::float_range data{static_cast<float*>(memory), 1};
  fill_ones(work, data);
  CHECK(cudaFreeAsync(memory, work.get()) == cudaSuccess);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  CHECK_NO_DEVICE_ERRORS();

  REQUIRE(cudaMallocAsync(&memory, 4, work.get()) == cudaSuccess);
  fill_ones(other, {static_cast<float*>(memory), 1});  // no event after the allocation
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  expect_error({"cudaMallocAsync", "kernel fill_ones in stream 2"});

  CHECK(cudaFreeAsync(memory, work.get()) == cudaSuccess);
  freed.record(work.get());
  freed.precede(other.get());
  fill_ones(other, {static_cast<float*>(memory), 1});
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  expect_error({"which cudaFreeAsync in stream 1 of device 0 has freed"});
}

TEST_CASE("pinned memory holds what it held until the host waits") {
  const session gpu;
  const stream work;
  const device_floats data(1);
  const pinned_float seen;
  *seen.at = 7;
  fill_ones(work, data);
  CHECK(cudaMemcpyAsync(seen.at, data.get(), 4, cudaMemcpyDeviceToHost, work.get()) == cudaSuccess);
  CHECK(*seen.at == 7);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  CHECK(*seen.at == 1);
}

TEST_CASE("a copy out of pinned memory takes what is there when it is done, of pageable at once") {
  const session gpu;
  const stream work;
  const device_floats data(1);
  const pinned_float source;
  *source.at = 1;
  CHECK(cudaMemcpyAsync(data.get(), source.at, 4, cudaMemcpyDefault, work.get()) == cudaSuccess);
  CHECK(emulation::counts().host_synchronisations == 0);
  *source.at = 2;  // too early
  CHECK(data.value(work) == 2);

  float pageable = 1;
  CHECK(cudaMemcpyAsync(data.get(), &pageable, 4, cudaMemcpyDefault, work.get()) == cudaSuccess);
  CHECK(emulation::counts().host_synchronisations == 2);  // it may block, as value() does
  pageable = 2;
  CHECK(data.value(work) == 1);
}

TEST_CASE("the direction of a copy must be right") {
  const session gpu;
  const stream work;
  const device_floats data(1);
  float value = 0;
  CHECK(cudaMemcpyAsync(data.get(), &value, 4, cudaMemcpyDeviceToHost, work.get()) ==
        cudaErrorInvalidMemcpyDirection);
  expect_error({"this is a copy from pageable to device memory"});
}

TEST_CASE("a blocking copy is ordered by the host alone") {
  const session gpu;
  const stream work;
  const device_floats data(1);
  float value = 0;
  fill_ones(work, data);
  CHECK(cudaMemcpy(&value, data.get(), 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(value != value);  // the kernel has not been done
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  expect_error({"kernel fill_ones", "is not ordered after cudaMemcpy of 4 bytes"});
  CHECK(cudaMemcpy(&value, data.get(), 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(value == 1);
  CHECK(cudaMemcpy(data.get(), &value, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  fill_ones(work, data);  // the host has waited for the copy
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
}

TEST_CASE("devices have as much memory as they are given, and fail when they are told to") {
  const session gpu(configuration{.device_bytes = 1000});
  std::size_t unused = 0, total = 0;
  void* first = nullptr;
  void* second = nullptr;
  CHECK(cudaMalloc(&first, 600) == cudaSuccess);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 256 == 0);
  CHECK(cudaMemGetInfo(&unused, &total) == cudaSuccess);
  CHECK(total - unused == 600);
  CHECK(cudaMalloc(&second, 600) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(cudaFree(first) == cudaSuccess);
  emulation::fail_allocation(2);
  CHECK(cudaMalloc(&first, 1) == cudaSuccess);
  CHECK(cudaMalloc(&second, 1) == cudaErrorMemoryAllocation);
  CHECK(cudaMallocHost(&second, 1) == cudaSuccess);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaFreeHost(second) == cudaSuccess);
  CHECK(emulation::counts().allocations == 5);
}

TEST_CASE("pointers say what they point to") {
  const session gpu;
  const device_floats data(4);
  const pinned_float pinned;
  float here = 0;
  cudaPointerAttributes what{};
  const auto type_of = [&](const void* at) {
    CHECK(cudaPointerGetAttributes(&what, at) == cudaSuccess);
    return what.type;
  };
  CHECK(type_of(data.get() + 3) == cudaMemoryTypeDevice);
  CHECK(type_of(data.get() + 4) == cudaMemoryTypeUnregistered);
  CHECK(type_of(pinned.at) == cudaMemoryTypeHost);
  CHECK(type_of(&here) == cudaMemoryTypeUnregistered);
}
