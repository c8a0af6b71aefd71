// An emulation of the CUDA runtime, cuBLASLt and NCCL on the host, for tests: what a test sets,
// asks and gives to it. The programs under test call the toolkit's own functions.
//
// Work is queued by stream and done as late as possible: when the host waits for it, or for what
// comes after it. Device memory cannot be touched by the host, and starts as NaN. Order is checked
// with vector clocks: two operations that touch the same bytes, one of them writing, must be
// ordered by a stream, an event, a collective or a wait of the host. Host threads are taken to
// order themselves: what one of them has waited for counts for all.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace emulation {

// ------------------------------------------------------------------------------------ the machine

struct configuration {
  int devices = 1;
  // Memory of each device; cudaMalloc fails beyond it.
  std::size_t device_bytes = std::size_t{4} << 30;
  // How long the host waits for work that cannot go on before a hang is reported.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
  // Does work when it is issued where that is possible: stack traces then show who issued it.
  bool at_once = false;
};

// A fresh machine: no memory, streams or handles, all counts and errors gone. No other thread may
// be in a call. Between two of them no address of device memory is given out twice.
void reset(const configuration& = {});

// What was wrong so far, oldest first; the first one is also printed when it happens. Calls that
// fail for a reason of their own (no memory, not ready) and injected failures are none.
[[nodiscard]] std::vector<std::string> errors();

// The same, and forgets them: for tests that expect some.
[[nodiscard]] std::vector<std::string> take_errors();

// What has been made and not been given back: memory, streams, events, handles, descriptors,
// graphs, communicators.
[[nodiscard]] std::vector<std::string> leaks();

struct counters {
  long allocations = 0;            // of device or pinned memory
  long host_synchronisations = 0;  // calls that block the host until work is done, or may
  long launches = 0;               // kernels; those of a graph at each replay
  long matmuls = 0;                // the same
  long copies = 0;
  long bytes_copied = 0;
  long graph_launches = 0;
  long nccl_calls = 0;   // broadcasts, reductions, sends, ...
  long nccl_groups = 0;  // pairs of group calls that had something in them
};

// Counts work when it is issued, that of a graph when it is launched.
[[nodiscard]] counters counts();

// ------------------------------------------------------------------------------------- injections

// The n-th allocation from now on finds no memory.
void fail_allocation(int n = 1);

// The n-th call of a function from now on fails with that code and does nothing else: fail_call(
// "cudaEventRecord", cudaErrorLaunchFailure).
void fail_call(std::string_view function, int code, int n = 1);

// ---------------------------------------------------------------------------------------- kernels

enum class use {
  read,      // of bytes that something has written
  read_any,  // also of bytes that nothing has written
  write,     // without reading
  update     // both, also of bytes that nothing has written
};

struct access {
  const void* address;
  std::size_t bytes;
  use how;
};

// What a kernel launch is: does `body` when the stream comes to it, once for each replay in a
// graph. While it runs, the host may use the declared ranges at their device addresses, read-only
// where they are only read (by pages, so small slips go unseen; beyond the end of an allocation
// lies a guard). `body` is kept until then: it must own what it refers to, like the arguments of a
// kernel. The stream must be of the current device. Returns what cudaLaunchKernel would.
cudaError_t launch(cudaStream_t, std::string_view name, std::vector<access>,
                   std::function<void()> body);

}  // namespace emulation
