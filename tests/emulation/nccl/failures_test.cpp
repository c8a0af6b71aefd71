// Ranks that do not come, make other calls, fail or go: what the emulated NCCL says.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "emulation/nccl.hpp"
#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "support/device_floats.hpp"
#include "support/nccl_ranks.hpp"

namespace {

using emulation::configuration, emulation::expect_error, emulation::session;
using mfsdp::cuda::event, mfsdp::cuda::stream;
using mfsdp_test::device_floats, mfsdp_test::fill_ones, mfsdp_test::nccl_rank,
    mfsdp_test::on_each_rank;

configuration two_impatient_devices() {
  return {.devices = 2, .patience = std::chrono::milliseconds(200)};
}

// Both ranks bring something; it does not fit, which is told, and moves nothing.
template <class Bring>
void expect_mismatch(std::initializer_list<std::string_view> parts, const Bring& bring) {
  const session gpus(two_impatient_devices());
  on_each_rank(2, [&](nccl_rank& here) {
    const device_floats data(8);
    fill_ones(here.stream, data);
    bring(here, data.get());
    CHECK(cudaStreamSynchronize(here.stream.get()) == cudaSuccess);
    CHECK(data.value(here.stream) == 1);
  });
  expect_error(parts);
}

ncclResult_t all_reduce(const nccl_rank& here, float* data, std::size_t count) {
  return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, here.comm, here.stream.get());
}

}  // namespace

TEST_CASE("calls of the ranks must match") {
  expect_mismatch({"ncclBroadcast of 4 elements", "does not match ncclBroadcast of 4", "root 0",
                   "root 1", "(collective 0)"},
                  [](nccl_rank& here, float* data) {
                    ncclBroadcast(data, data, 4, ncclFloat32, here.rank, here.comm,
                                  here.stream.get());
                  });
  expect_mismatch({"of 4 elements", "of 3 elements"}, [](nccl_rank& here, float* data) {
    all_reduce(here, data, here.rank == 0 ? 4 : 3);
  });
  expect_mismatch({"of type 7", "of type 2"}, [](nccl_rank& here, float* data) {
    ncclAllReduce(data, data, 4, here.rank == 0 ? ncclFloat32 : ncclInt32, ncclSum, here.comm,
                  here.stream.get());
  });
  expect_mismatch({"does not match"}, [](nccl_rank& here, float* data) {
    ncclAllReduce(data, data, 4, ncclFloat32, here.rank == 0 ? ncclSum : ncclMax, here.comm,
                  here.stream.get());
  });
  expect_mismatch({"ncclReduce", "ncclBroadcast"}, [](nccl_rank& here, float* data) {
    if (here.rank == 0)
      ncclReduce(data, data, 4, ncclFloat32, ncclSum, 0, here.comm, here.stream.get());
    if (here.rank == 1) ncclBroadcast(data, data, 4, ncclFloat32, 0, here.comm, here.stream.get());
  });
  expect_mismatch({"ncclSend of 4 elements", "does not match ncclRecv of 5 elements"},
                  [](nccl_rank& here, float* data) {
                    if (here.rank == 0)
                      ncclSend(data, 4, ncclFloat32, 1, here.comm, here.stream.get());
                    if (here.rank == 1)
                      ncclRecv(data, 5, ncclFloat32, 0, here.comm, here.stream.get());
                  });
}

TEST_CASE("operands are memory of the communicator's device, in a stream of it") {
  const session gpus(two_impatient_devices());
  on_each_rank(2, [](nccl_rank& here) {
    if (here.rank == 1) return;
    const device_floats data(8);
    float on_host = 0;
    CHECK(all_reduce(here, &on_host, 1) == ncclInvalidArgument);
    expect_error({"ncclAllReduce", "is not memory of a device, nor pinned"});
    CHECK(all_reduce(here, data.get(), 9) == ncclInvalidArgument);
    expect_error({"4 too many"});
    CHECK(ncclAllReduce(data.get(), data.get() + 1, 4, ncclFloat32, ncclSum, here.comm,
                        here.stream.get()) == ncclInvalidArgument);
    expect_error({"the buffers overlap"});
    CHECK(ncclBroadcast(data.get(), data.get(), 4, ncclFloat32, 2, here.comm, here.stream.get()) ==
          ncclInvalidArgument);
    expect_error({"rank 2 of 2"});
    CHECK(cudaSetDevice(1) == cudaSuccess);
    {
      const stream elsewhere;
      CHECK(ncclAllReduce(data.get(), data.get(), 4, ncclFloat32, ncclSum, here.comm,
                          elsewhere.get()) == ncclInvalidUsage);
      expect_error({"is of device 0", "of device 1"});
    }
    CHECK(cudaSetDevice(0) == cudaSuccess);
  });
}

TEST_CASE("a collective is work of its stream: what it reads and writes needs an order") {
  for (const bool with_event : {true, false}) {
    const session gpus(two_impatient_devices());
    on_each_rank(2, [&](nccl_rank& here) {
      const stream compute;
      const event ready;
      const device_floats data(8);
      fill_ones(compute, data);
      ready.record(compute.get());
      if (with_event || here.rank == 0) ready.precede(here.stream.get());
      CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
      CHECK(cudaDeviceSynchronize() == cudaSuccess);
      if (with_event) CHECK(data.value(here.stream) == 2);
    });
    if (with_event) CHECK_NO_DEVICE_ERRORS();
    if (with_event) continue;
    // The sum came first: it has read what nothing had written, and the kernel came too late.
    const auto found = emulation::take_errors();
    REQUIRE(found.size() == 2);
    CHECK(found[0].find("rank 1 of 2") != std::string::npos);
    CHECK(found[0].find("not all of which have been written") != std::string::npos);
    CHECK(found[1].find("kernel fill_ones") != std::string::npos);
    CHECK(found[1].find("is not ordered after ncclAllReduce") != std::string::npos);
  }
}

TEST_CASE("a collective orders what the ranks did before it") {
  const session gpus(two_impatient_devices());
  on_each_rank(2, [](nccl_rank& here) {
    const device_floats data(8);
    fill_ones(here.stream, data);
    for (int i = 0; i < 3; ++i) CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
    CHECK(data.value(here.stream) == 8);
  });
}

TEST_CASE("a rank that never comes leaves the others unfinished until they abort") {
  const session gpus(two_impatient_devices());
  on_each_rank(2, [](nccl_rank& here) {
    if (here.rank == 1) return;
    const device_floats data(8);
    const event done;
    fill_ones(here.stream, data);
    CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
    done.record(here.stream.get());
    CHECK_FALSE(done.done());
    CHECK_FALSE(done.done());
    CHECK(cudaStreamSynchronize(here.stream.get()) == cudaErrorLaunchTimeout);
    expect_error(
        {"hangs: stream", "does not get beyond ncclAllReduce of 8 elements", "rank 0 of 2"});
    CHECK(ncclCommAbort(std::exchange(here.comm, nullptr)) == ncclSuccess);
    CHECK(done.done());
  });
}

TEST_CASE("an abort releases a thread that waits") {
  const session gpus(configuration{.devices = 2});
  on_each_rank(2, [](nccl_rank& here) {
    if (here.rank == 1) return;
    const device_floats data(8);
    fill_ones(here.stream, data);
    CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
    std::thread watcher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK(ncclCommAbort(std::exchange(here.comm, nullptr)) == ncclSuccess);
    });
    CHECK(cudaStreamSynchronize(here.stream.get()) == cudaSuccess);
    watcher.join();
  });
}

TEST_CASE("an error of a communicator stays, and stops its work") {
  const session gpus(two_impatient_devices());
  emulation::fail_communicators(0, ncclRemoteError, 2);
  on_each_rank(2, [](nccl_rank& here) {
    if (here.rank == 1) return;
    const device_floats data(8);
    fill_ones(here.stream, data);
    CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
    ncclResult_t state{};
    for (const ncclResult_t expected : {ncclSuccess, ncclRemoteError, ncclRemoteError}) {
      CHECK(ncclCommGetAsyncError(here.comm, &state) == ncclSuccess);
      CHECK(state == expected);
    }
    CHECK(all_reduce(here, data.get(), 8) == ncclRemoteError);
    CHECK(cudaStreamQuery(here.stream.get()) == cudaErrorNotReady);
    CHECK(ncclCommAbort(std::exchange(here.comm, nullptr)) == ncclSuccess);
  });
}

TEST_CASE("groups begin and end in pairs") {
  const session gpus(two_impatient_devices());
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  expect_error({"ncclGroupEnd: without ncclGroupStart"});
  CHECK(ncclGroupStart() == ncclSuccess);
  REQUIRE(emulation::leaks().size() == 1);
  CHECK(emulation::leaks()[0] == "leak: ncclGroupStart without ncclGroupEnd");
  CHECK(ncclGroupEnd() == ncclSuccess);
  on_each_rank(2, [](nccl_rank& here) {
    const device_floats data(8);
    fill_ones(here.stream, data);
    // What one call refuses, the group refuses as a whole.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(all_reduce(here, data.get(), 8) == ncclSuccess);
    CHECK(all_reduce(here, data.get(), 9) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(data.value(here.stream) == 1);
  });
  CHECK(emulation::take_errors().size() == 2);
  CHECK(emulation::counts().nccl_groups == 0);
}

TEST_CASE("ranks meet with one id, each once and on its own device") {
  const session gpus(two_impatient_devices());
  ncclUniqueId id{}, blank{};
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, 2, blank, 0) == ncclInvalidArgument);
  expect_error({"the id is not from ncclGetUniqueId"});
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  CHECK(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
  expect_error({"rank 2 of 2"});
  CHECK(ncclCommInitRank(&comm, 2, id, 1) == ncclSystemError);
  expect_error({"rank 1 of 2: these ranks have not come: 0"});
  ncclComm_t other = nullptr;
  CHECK(ncclCommInitRank(&other, 2, id, 1) == ncclInvalidUsage);
  expect_error({"rank 1 has come with this id before"});
  CHECK(ncclCommInitRank(&other, 3, id, 0) == ncclInvalidUsage);
  expect_error({"rank 0 expects 3 ranks, another one 2"});
  CHECK(ncclCommInitRank(&other, 2, id, 0) == ncclInvalidUsage);
  expect_error({"are both on device 0"});
  CHECK(ncclCommAbort(comm) == ncclSuccess);
  CHECK(ncclCommAbort(comm) == ncclInvalidArgument);
  expect_error({"was aborted before"});
}

TEST_CASE("a communicator that does not block wants to be asked") {
  const session gpus(two_impatient_devices());
  ncclUniqueId id{};
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto until_complete = [](ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    }
    CHECK(state == ncclSuccess);
  };
  std::atomic<bool> asked = false;
  const auto run_rank = [&](int rank) {
    cudaSetDevice(rank);
    const stream work;
    ncclComm_t comm = nullptr;
    while (rank == 1 && !asked) std::this_thread::yield();
    const ncclResult_t begun = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
    if (rank == 0) {
      CHECK(begun == ncclInProgress);
      ncclResult_t state{};
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      CHECK(state == ncclInProgress);
      int size = 0;
      CHECK(ncclCommCount(comm, &size) == ncclInvalidArgument);
      expect_error(
          {"is used before ncclCommGetAsyncError has said that the last call is complete"});
      asked = true;
    }
    until_complete(comm);
    const device_floats data(8);
    const event done;
    fill_ones(work, data);
    CHECK(ncclAllReduce(data.get(), data.get(), 8, ncclFloat32, ncclSum, comm, work.get()) ==
          ncclInProgress);
    done.record(work.get());  // too early: nothing is queued yet
    CHECK(done.done());
    until_complete(comm);
    CHECK(data.value(work) == 2);
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    until_complete(comm);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  };
  std::thread second(run_rank, 1);
  run_rank(0);
  second.join();
}

TEST_CASE("a communicator that does not block is finalized before it is destroyed") {
  const session gpus(configuration{});
  ncclUniqueId id{};
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
  expect_error({"ncclCommFinalize was not complete"});
}
