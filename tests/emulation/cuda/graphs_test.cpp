// Graphs on the emulated device. Each test plants a fault beside what is right.
#include <doctest/doctest.h>

#include <utility>

#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "support/device_floats.hpp"

namespace {

using emulation::expect_error, emulation::session;
using mfsdp::cuda::event, mfsdp::cuda::stream;
using mfsdp_test::device_floats, mfsdp_test::fill_ones, mfsdp_test::float_range;

void add_one(const stream& in, float_range to) {
  emulation::launch(in.get(), "add_one", {{to.first, to.bytes(), emulation::use::update}}, [=] {
    for (std::size_t i = 0; i < to.count; ++i) to.first[i] += 1;
  });
}

cudaError_t begin_capture(const stream& in) {
  return cudaStreamBeginCapture(in.get(), cudaStreamCaptureModeThreadLocal);
}

// Captures what the body issues into an executable graph.
template <class Body>
cudaGraphExec_t captured(const stream& in, const Body& body) {
  REQUIRE(begin_capture(in) == cudaSuccess);
  body();
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(in.get(), &graph) == cudaSuccess);
  cudaGraphExec_t result = nullptr;
  REQUIRE(cudaGraphInstantiate(&result, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return result;
}

// Ends a capture that is to fail.
cudaError_t end_capture(const stream& in) {
  cudaGraph_t graph = nullptr;
  const cudaError_t code = cudaStreamEndCapture(in.get(), &graph);
  CHECK(graph == nullptr);
  return code;
}

}  // namespace

TEST_CASE("captured work is done at each launch, and not before") {
  const session gpu;
  const stream work;
  const device_floats data(4);
  fill_ones(work, data);
  const cudaGraphExec_t graph = captured(work, [&] { add_one(work, data), add_one(work, data); });
  CHECK(data.value(work) == 1);
  CHECK(emulation::counts().launches == 1);
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(graph, work.get()) == cudaSuccess);
  CHECK(data.value(work) == 5);
  CHECK(emulation::counts().launches == 5);
  CHECK(emulation::counts().graph_launches == 2);
  CHECK(cudaGraphExecDestroy(graph) == cudaSuccess);
}

TEST_CASE("a launch is ordered like other work of its stream") {
  const session gpu;
  const stream work, other;
  const event before;
  const device_floats data(4);
  const cudaGraphExec_t graph = captured(work, [&] { add_one(work, data); });
  const auto launch_after_write = [&](bool with_event) {
    fill_ones(other, data);
    before.record(other.get());
    if (with_event) before.precede(work.get());
    CHECK(cudaGraphLaunch(graph, work.get()) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  };
  launch_after_write(true);
  CHECK_NO_DEVICE_ERRORS();
  launch_after_write(false);
  expect_error({"kernel fill_ones in stream 2", "kernel add_one in stream 1"});
  CHECK(cudaGraphExecDestroy(graph) == cudaSuccess);
}

TEST_CASE("streams join a capture by events, and their branches need an order") {
  const session gpu;
  const stream work, other;
  const event fork, join;
  const device_floats data(4);
  fill_ones(work, data);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  const auto branch = [&](bool joins_in_time) {
    return captured(work, [&] {
      fork.record(work.get());
      fork.precede(other.get());
      add_one(other, data);
      join.record(other.get());
      if (joins_in_time) join.precede(work.get());
      add_one(work, data);
      if (!joins_in_time) join.precede(work.get());
    });
  };
  const cudaGraphExec_t right = branch(true), wrong = branch(false);
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(right, work.get()) == cudaSuccess);
  CHECK(data.value(work) == 5);
  CHECK_NO_DEVICE_ERRORS();
  CHECK(cudaGraphLaunch(wrong, work.get()) == cudaSuccess);
  CHECK(cudaStreamSynchronize(work.get()) == cudaSuccess);
  expect_error({"kernel add_one in stream 1", "kernel add_one in stream 2"});
  CHECK(cudaGraphExecDestroy(right) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(wrong) == cudaSuccess);
}

TEST_CASE("a branch that nothing waits for cannot be captured") {
  const session gpu;
  const stream work, other;
  const event fork;
  const device_floats data(4);
  CHECK(begin_capture(work) == cudaSuccess);
  fork.record(work.get());
  fork.precede(other.get());
  add_one(other, data);
  CHECK(end_capture(work) == cudaErrorStreamCaptureUnjoined);
  expect_error({"has work that nothing waits for"});
}

TEST_CASE("neither waits nor allocations can be captured") {
  const session gpu;
  const stream work, other;
  const event mark;
  const device_floats data(4);
  void* memory = nullptr;
  float pageable = 0;
  mark.record(other.get());
  const auto breaks = [&](cudaError_t code, std::string_view function) {
    CHECK(code != cudaSuccess);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(work.get(), &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(end_capture(work) == cudaErrorStreamCaptureInvalidated);
    expect_error({function});
    CHECK(begin_capture(work) == cudaSuccess);
  };
  CHECK(begin_capture(work) == cudaSuccess);
  breaks(cudaStreamSynchronize(work.get()), "cudaStreamSynchronize: not while stream 1");
  breaks(cudaStreamSynchronize(other.get()), "cudaStreamSynchronize");
  breaks(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  breaks(cudaEventQuery(mark.get()), "cudaEventQuery");
  breaks(cudaMalloc(&memory, 4), "cudaMalloc");
  breaks(cudaMallocAsync(&memory, 4, other.get()), "cudaMallocAsync");
  breaks(cudaMallocHost(&memory, 4), "cudaMallocHost");
  breaks(cudaMemcpy(&pageable, data.get(), 4, cudaMemcpyDefault), "cudaMemcpy");
  breaks(cudaMemcpyAsync(&pageable, data.get(), 4, cudaMemcpyDefault, work.get()),
         "pageable memory in a capture");
  breaks(cudaStreamWaitEvent(work.get(), mark.get(), 0), "was recorded before that");
  breaks(cudaStreamDestroy(work.get()), "is captured");
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(work.get(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK_NO_DEVICE_ERRORS();
}

TEST_CASE("an event of a capture means nothing outside of it") {
  const session gpu;
  const stream work;
  const event mark;
  const device_floats data(4);
  const cudaGraphExec_t graph = captured(work, [&] {
    add_one(work, data);
    mark.record(work.get());
  });
  CHECK(cudaEventQuery(mark.get()) == cudaErrorCapturedEvent);
  expect_error({"event 1 was recorded in a capture"});
  CHECK(cudaStreamWaitEvent(work.get(), mark.get(), 0) == cudaErrorCapturedEvent);
  expect_error({"in a capture that has ended"});
  CHECK(cudaGraphExecDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphLaunch(graph, work.get()) == cudaErrorInvalidResourceHandle);
  expect_error({"no executable graph"});
}
