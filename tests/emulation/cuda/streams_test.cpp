// Order on the emulated device: each test plants a fault beside the right program.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"

namespace {

using mfsdp::cuda::event, mfsdp::cuda::stream;

float* device_floats(std::size_t count) {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, count * sizeof(float)) == cudaSuccess);
  return static_cast<float*>(memory);
}

void write_ones(const stream& in, float* at, std::size_t count) {
  emulation::launch(in.get(), "write_ones", {{at, count * sizeof(float), emulation::use::write}},
                    [=] {
                      for (std::size_t i = 0; i < count; ++i) at[i] = 1;
                    });
}

void add_up(const stream& in, const float* from, std::size_t count, float* to) {
  emulation::launch(in.get(), "add_up",
                    {{from, count * sizeof(float), emulation::use::read},
                     {to, sizeof(float), emulation::use::write}},
                    [=] {
                      *to = 0;
                      for (std::size_t i = 0; i < count; ++i) *to += from[i];
                    });
}

void expect_error(std::string_view part) {
  const auto found = emulation::take_errors();
  REQUIRE_MESSAGE(found.size() == 1, "expected one error with: " << part);
  CHECK_MESSAGE(found[0].find(part) != std::string::npos, found[0] << "\nexpected: " << part);
}

}  // namespace

TEST_CASE("work of one stream is ordered, and done when the host waits") {
  const emulation::session session;
  const stream work;
  float* const data = device_floats(16);
  float* const sum = device_floats(1);
  write_ones(work, data, 16);
  add_up(work, data, 16, sum);
  float result = 0;
  CHECK(cudaMemcpyAsync(&result, sum, sizeof(float), cudaMemcpyDeviceToHost, work.get()) ==
        cudaSuccess);
  CHECK(result == 16);
  CHECK(emulation::counts().launches == 2);
  CHECK(emulation::counts().host_synchronisations == 1);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFree(sum) == cudaSuccess);
}

TEST_CASE("a read in another stream needs an event") {
  const emulation::session session;
  const stream first, second;
  const event written;
  float* const data = device_floats(16);
  float* const sum = device_floats(1);
  const auto read_in_second = [&](bool with_event) {
    write_ones(first, data, 16);
    written.record(first.get());
    if (with_event) written.precede(second.get());
    add_up(second, data, 16, sum);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  };
  read_in_second(true);
  CHECK_NO_DEVICE_ERRORS();
  read_in_second(false);
  // In whichever order they were done.
  const auto found = emulation::take_errors();
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("kernel write_ones in stream 1") != std::string::npos);
  CHECK(found[0].find("kernel add_up in stream 2") != std::string::npos);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFree(sum) == cudaSuccess);
}

TEST_CASE("the host sees pinned memory of before until it waits") {
  const emulation::session session;
  const stream work;
  float* const data = device_floats(1);
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, sizeof(float)) == cudaSuccess);
  float* const seen = static_cast<float*>(pinned);
  *seen = 7;
  write_ones(work, data, 1);
  cudaMemcpyAsync(seen, data, sizeof(float), cudaMemcpyDeviceToHost, work.get());
  CHECK(*seen == 7);
  cudaStreamSynchronize(work.get());
  CHECK(*seen == 1);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("what nothing has written is NaN, and a kernel that reads it is told") {
  const emulation::session session;
  const stream work;
  float* const data = device_floats(2);
  float* const sum = device_floats(1);
  write_ones(work, data, 1);
  add_up(work, data, 2, sum);
  float result = 0;
  cudaMemcpyAsync(&result, sum, sizeof(float), cudaMemcpyDeviceToHost, work.get());
  CHECK(result != result);
  expect_error("not all of which have been written");
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFree(sum) == cudaSuccess);
}

TEST_CASE("the host cannot touch device memory") {
  const emulation::session session;
  float* const data = device_floats(1);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    *static_cast<volatile float*>(data) = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) != 0));
  CHECK(cudaFree(data) == cudaSuccess);
}
