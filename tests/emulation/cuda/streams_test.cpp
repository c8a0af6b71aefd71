// Work and its order on the emulated device. Each test plants a fault beside what is right.
#include <doctest/doctest.h>

#include <stdexcept>

#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "support/device_floats.hpp"
#include "support/dies.hpp"

namespace {

using emulation::configuration, emulation::expect_error, emulation::session;
using mfsdp::cuda::event, mfsdp::cuda::stream;
using mfsdp_test::add_up, mfsdp_test::device_floats, mfsdp_test::fill_ones;

}  // namespace

TEST_CASE("work of one stream is ordered, and done when the host waits") {
  const session gpu;
  const stream work;
  const device_floats data(16), sum(1);
  fill_ones(work, data);
  add_up(work, data, sum);
  CHECK(sum.value(work) == 16);
  CHECK(emulation::counts().launches == 2);
  CHECK(emulation::counts().host_synchronisations == 1);
  CHECK(emulation::counts().bytes_copied == 4);
}

TEST_CASE("a read in another stream needs an event") {
  const session gpu;
  const stream first, second;
  const event written;
  const device_floats data(16), sum(1);
  const auto read_in_second = [&](bool with_event) {
    fill_ones(first, data);
    written.record(first.get());
    if (with_event) written.precede(second.get());
    add_up(second, data, sum);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  };
  read_in_second(true);
  CHECK_NO_DEVICE_ERRORS();
  read_in_second(false);
  expect_error(
      {"kernel fill_ones in stream 1", "kernel add_up in stream 2", "is not ordered after"});
}

TEST_CASE("a write in another stream waits for the reads") {
  const session gpu;
  const stream first, second;
  const event read;
  const device_floats data(16), sum(1);
  fill_ones(first, data);
  CHECK(cudaStreamSynchronize(first.get()) == cudaSuccess);
  for (const bool with_event : {true, false}) {
    add_up(first, data, sum);
    read.record(first.get());
    if (with_event) read.precede(second.get());
    fill_ones(second, data);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    if (with_event) CHECK_NO_DEVICE_ERRORS();
  }
  expect_error({"kernel add_up in stream 1", "kernel fill_ones in stream 2"});
}

TEST_CASE("an event stands for what was recorded last") {
  const session gpu;
  const stream first, second;
  const event written;
  const device_floats data(16), sum(1);
  written.record(first.get());
  fill_ones(first, data);
  written.precede(second.get());  // recorded too early
  add_up(second, data, sum);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  expect_error({"kernel fill_ones", "kernel add_up"});
}

TEST_CASE("neighbours in one allocation do not disturb each other") {
  const session gpu;
  const stream first, second;
  const device_floats data(16);
  fill_ones(first, data.part(0, 8));
  fill_ones(second, data.part(8, 8));
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK_NO_DEVICE_ERRORS();
  fill_ones(first, data.part(0, 8));
  fill_ones(second, data.part(7, 8));
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  expect_error({"writes bytes"});
}

TEST_CASE("what the host has waited for comes before what it issues") {
  const session gpu;
  const stream first, second;
  const event written;
  const device_floats data(16), sum(1);
  const auto after = [&](auto wait) {
    fill_ones(first, data);
    written.record(first.get());
    wait();
    add_up(second, data, sum);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  };
  after([&] { CHECK(cudaStreamSynchronize(first.get()) == cudaSuccess); });
  after([&] { CHECK(cudaEventSynchronize(written.get()) == cudaSuccess); });
  after([&] { CHECK(written.done()); });
  after([&] { CHECK(cudaStreamQuery(first.get()) == cudaSuccess); });
  CHECK_NO_DEVICE_ERRORS();
  after([] {});
  expect_error({"kernel fill_ones", "kernel add_up"});
}

TEST_CASE("a kernel has the device memory that it declares, and no other") {
  const session gpu;
  const stream work;
  const device_floats data(1);
  CHECK(emulation::launch(work.get(), "throws", {},
                          [] { throw std::runtime_error("by itself"); }) == cudaSuccess);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  expect_error({"kernel throws", "by itself"});

  const auto writes_with = [&](emulation::use how) {
    return [&, how] {
      emulation::launch(work.get(), "writes", {{data.get(), 4, how}},
                        [at = data.get()] { *at = 1; });
      cudaStreamSynchronize(work.get());
    };
  };
  fill_ones(work, data);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  CHECK_FALSE(mfsdp_test::dies(writes_with(emulation::use::write)));
  CHECK(mfsdp_test::dies(writes_with(emulation::use::read)));
}

TEST_CASE("work is done as late as the host allows, or at once if asked") {
  for (const bool at_once : {false, true}) {
    const session gpu(configuration{.at_once = at_once});
    const stream work;
    int calls = 0;
    CHECK(cudaLaunchHostFunc(
              work.get(), [](void* to) { ++*static_cast<int*>(to); }, &calls) == cudaSuccess);
    CHECK(calls == (at_once ? 1 : 0));
    CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
    CHECK(calls == 1);
  }
}

TEST_CASE("work of a stream cannot call the library") {
  const session gpu;
  const stream work;
  CHECK(cudaLaunchHostFunc(
            work.get(),
            [](void* s) {
              CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(s)) == cudaErrorNotPermitted);
            },
            work.get()) == cudaSuccess);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  expect_error({"cudaStreamSynchronize: called from inside work of a stream"});
}

TEST_CASE("the default stream, and streams and events of others, are refused") {
  const session gpus(configuration{.devices = 2});
  const device_floats data(1);
  CHECK(cudaMemsetAsync(data.get(), 0, 4, nullptr) == cudaErrorInvalidResourceHandle);
  expect_error({"cudaMemsetAsync: the default stream"});

  const stream work;
  const event mark;
  CHECK(cudaSetDevice(1) == cudaSuccess);
  CHECK(emulation::launch(work.get(), "elsewhere", {}, [] {}) == cudaErrorInvalidResourceHandle);
  expect_error({"stream 1 of device 0, but device 1 is current"});
  {
    const stream other;
    CHECK(cudaEventRecord(mark.get(), other.get()) == cudaErrorInvalidResourceHandle);
    expect_error({"event 1 of device 0 in stream 2 of device 1"});
    CHECK(emulation::launch(other.get(), "remote", {{data.get(), 4, emulation::use::write}},
                            [] {}) == cudaErrorIllegalAddress);
    expect_error({"runs on device 1 and uses 4 bytes of device 0"});
  }
  CHECK(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  expect_error({"device 2 of 2"});
}

TEST_CASE("an unfinished event is not ready, which is the last error until it is taken") {
  const session gpu;
  const stream work;
  const event mark;
  CHECK(mark.done());  // never recorded
  CHECK(cudaGetLastError() == cudaSuccess);
  emulation::fail_call("cudaEventQuery", cudaErrorNotReady);
  mark.record(work.get());
  CHECK_FALSE(mark.done());
  CHECK(cudaPeekAtLastError() == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(mark.done());
}

TEST_CASE("calls fail when they are told to") {
  const session gpu;
  const stream work;
  emulation::fail_call("cudaStreamSynchronize", cudaErrorLaunchFailure, 2);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  CHECK(cudaStreamSynchronize(work.get()) == cudaErrorLaunchFailure);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
}

TEST_CASE("what is not given back is told") {
  const session gpu;
  cudaStream_t work = nullptr;
  CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking) == cudaSuccess);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 100) == cudaSuccess);
  REQUIRE(emulation::leaks().size() == 2);
  CHECK(emulation::leaks()[0] == "leak: 100 bytes of device 0 (allocation 1)");
  CHECK(emulation::leaks()[1] == "leak: stream 1");
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaStreamDestroy(work) == cudaSuccess);
  CHECK(emulation::leaks().empty());
  CHECK(cudaStreamSynchronize(work) == cudaErrorInvalidResourceHandle);
  expect_error({"stream 1 of device 0 was destroyed"});
}

TEST_CASE("events take an emulated time") {
  const session gpu;
  const stream work;
  cudaEvent_t begin = nullptr, end = nullptr;
  CHECK(cudaEventCreateWithFlags(&begin, cudaEventDefault) == cudaSuccess);
  CHECK(cudaEventCreateWithFlags(&end, cudaEventDefault) == cudaSuccess);
  CHECK(cudaEventRecord(begin, work.get()) == cudaSuccess);
  for (int i = 0; i < 3; ++i) emulation::launch(work.get(), "nothing", {}, [] {});
  CHECK(cudaEventRecord(end, work.get()) == cudaSuccess);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds == doctest::Approx(0.003));
  CHECK(cudaEventDestroy(begin) == cudaSuccess);
  CHECK(cudaEventDestroy(end) == cudaSuccess);
}
