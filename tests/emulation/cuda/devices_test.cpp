// Emulated devices: how many, which is current, what they say of themselves.
#include <doctest/doctest.h>

#include <string_view>
#include <thread>

#include "emulation/session.hpp"

TEST_CASE("each thread has its own current device") {
  const emulation::session gpus(emulation::configuration{.devices = 3});
  int count = 0, device = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 3);
  CHECK(cudaSetDevice(2) == cudaSuccess);
  std::thread([&] { CHECK(cudaGetDevice(&device) == cudaSuccess); }).join();
  CHECK(device == 0);
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 2);
}

TEST_CASE("a machine without devices says so") {
  const emulation::session none(emulation::configuration{.devices = 0});
  int count = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 0);
}

TEST_CASE("attributes that are not emulated are refused, errors have names") {
  const emulation::session gpu;
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  CHECK(value == 9);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0) == cudaErrorInvalidValue);
  emulation::expect_error({"cudaDeviceGetAttribute: attribute 13 is not emulated"});
  CHECK(cudaGetErrorName(cudaErrorMemoryAllocation) ==
        std::string_view("cudaErrorMemoryAllocation"));
  CHECK(cudaGetErrorString(cudaErrorMemoryAllocation) == std::string_view("out of memory"));
}
