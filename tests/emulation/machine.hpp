// The emulated machine, for the files of the emulation: state, queues of work, and how a call
// enters. Everything here is used with the machine's lock held.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "emulation/emulation.hpp"
#include "emulation/order.hpp"

namespace emulation {

// ---------------------------------------------------------------------------------------- memory

// Device memory lies at two addresses: `address` is what the program gets, closed to the host;
// `view` is the same memory for the emulation. Of pinned memory both are the same.
struct allocation {
  std::string name;
  int device = 0;
  bool pinned = false;
  bool stream_ordered = false;
  char* address = nullptr;
  char* view = nullptr;
  std::size_t bytes = 0;
  touch_history history;
  std::string freed_by = {};  // empty while it lives
  void* closed = nullptr;     // the mappings that hold the two
  void* open = nullptr;
  std::size_t mapped = 0;
};

// ------------------------------------------------------------------------------------------ work

// The place in time of a stream or of a branch of a graph.
struct timeline {
  std::size_t lane = 0;
  vector_clock clock;
  double microseconds = 0;  // emulated, for timing events
};

// What event record makes; the event keeps the last one.
struct record;

inline constexpr int any_device = -1;

struct operation {
  std::shared_ptr<const std::string> name;
  int device = 0;  // whose memory it may touch; any_device: all
  std::vector<access> accesses;
  std::function<void(timeline&)> body;
  double microseconds = 1;
  std::function<bool()> ready = {};  // tries to make it so; none: always
  vector_clock host = {};            // what the host knew when it issued this
  long counters::* counted = nullptr;
};

inline std::shared_ptr<const std::string> shared_name(std::string name) {
  return std::make_shared<const std::string>(std::move(name));
}

struct capture;

}  // namespace emulation

struct CUstream_st {
  int device = 0;
  int number = 0;
  bool destroyed = false;
  bool advancing = false;
  emulation::timeline line;
  std::deque<emulation::operation> queue;
  std::uint64_t issued = 0, done = 0;

  // While it is captured:
  std::shared_ptr<emulation::capture> captured;
  std::vector<std::size_t> frontier;  // nodes that the next one comes after
  std::size_t branch = 0;
};

struct CUevent_st {
  int device = 0;
  int number = 0;
  bool timing = false;
  bool destroyed = false;
  std::shared_ptr<emulation::record> last;
};

struct CUgraph_st {
  struct node {
    emulation::operation what;
    std::vector<std::size_t> after;
    std::size_t branch;
  };
  int number = 0;
  bool destroyed = false;
  std::size_t branches = 0;
  std::vector<node> nodes;
};

struct CUgraphExec_st {
  int number = 0;
  bool destroyed = false;
  std::vector<CUgraph_st::node> nodes;
  std::vector<std::size_t> lanes;  // by branch
  emulation::vector_clock clock;   // where the last launch ended
};

namespace emulation {

struct record {
  cudaStream_t stream = nullptr;
  std::uint64_t position = 0;  // among what the stream has issued
  bool done = false;
  vector_clock clock;
  double microseconds = 0;
  std::shared_ptr<emulation::capture> captured;  // recorded in a capture: no time, only nodes
  std::vector<std::size_t> nodes;
};

struct capture {
  cudaGraph_t graph = nullptr;
  cudaStream_t origin = nullptr;
  std::vector<cudaStream_t> streams;  // those that forked from the origin, and it
  cudaStreamCaptureMode mode{};
  std::thread::id thread;
  bool valid = true;
};

// ------------------------------------------------------------------------------------ the machine

// Objects live until reset, so that the use of a destroyed one is told.
template <class T>
class objects {
 public:
  T* make() {
    all_.push_back(std::make_unique<T>());
    known_.insert(all_.back().get());
    return all_.back().get();
  }
  [[nodiscard]] bool knows(const void* object) const { return known_.contains(object); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  [[nodiscard]] int size() const { return static_cast<int>(all_.size()); }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::set<const void*> known_;
};

struct machine {
  std::mutex lock;
  std::condition_variable changed;
  configuration how;

  std::map<const char*, std::unique_ptr<allocation>> memory;  // by address, freed ones too
  std::vector<std::size_t> bytes_in_use;                      // by device
  objects<CUstream_st> streams;
  objects<CUevent_st> events;
  objects<CUgraph_st> graphs;
  objects<CUgraphExec_st> executables;
  std::set<std::shared_ptr<capture>> captures;
  std::vector<timeline> copiers;  // by device: the blocking cudaMemcpy
  std::size_t lanes = 0;
  vector_clock host;  // what the host has waited for

  std::vector<std::string> errors;
  bool printed = false;
  counters counts;
  int allocation_to_fail = 0;
  struct failure {
    std::string function;
    int code;
    int after;
  };
  std::vector<failure> failures;

  // What other files make: asked for leaks, and told of a reset.
  std::vector<std::function<void(std::vector<std::string>&)>> leak_reports;
  std::vector<std::function<void()>> at_reset;
};

machine& the_machine();

// The state of a thread.
struct caller {
  int device = 0;
  cudaError_t last = cudaSuccess;
  const char* function = "";
  bool in_work = false;  // inside the body of an operation
};
caller& the_caller();

// Notes that something is wrong: "<function or operation>: <what>".
void report(std::string_view who, const std::string& what);

// The same for the current call; returns the code, so that a check is one line.
template <class Code>
[[nodiscard]] Code refuse(Code code, const std::string& what) {
  report(the_caller().function, what);
  return code;
}

// ------------------------------------------------------------------------- memory, streams, queues

// The allocation that holds an address, also a freed one; null for other memory of the host.
allocation* find(const void* address);

// Where the emulation finds what lies at an address.
void* view(const void* address);
template <class T>
T* view(T* address) {
  return static_cast<T*>(view(static_cast<const void*>(address)));
}

// Whether a device may touch the ranges; reports what is wrong with them otherwise.
bool check(std::string_view who, int device, const std::vector<access>&);

std::string describe(cudaStream_t);

// A stream that may be used now; reports otherwise.
cudaError_t check(cudaStream_t);
// The same, and of the current device.
cudaError_t check_current(cudaStream_t);

// Appends to a stream, or to the graph that it is captured into. Counts.
cudaError_t issue(cudaStream_t, operation);

// Makes the accesses at the time of a line, and reports those that are not ordered after what they
// must be. False: the memory is not there.
bool touch_memory(const operation&, const timeline&);

// Does one operation at the end of a timeline.
void perform(const operation&, timeline&);

// Does what a stream can do of its first `until` operations.
void advance(cudaStream_t, std::uint64_t until);

// Blocks the caller until `done`, which tries to make it so. False: it took too long, which is
// reported, with where it is stuck.
bool await(std::unique_lock<std::mutex>&, const std::function<bool()>& done,
           const std::function<std::string()>& where);

// Where a stream is stuck.
std::string position(cudaStream_t);

// Waits for all that is queued in a stream, or on a device. False: as above.
bool finish(std::unique_lock<std::mutex>&, cudaStream_t);
bool finish_device(std::unique_lock<std::mutex>&, int device);

// Refuses the call while the thread captures; what the call does cannot be in a graph.
cudaError_t refuse_in_capture();
void invalidate(capture&);
// Brings a stream into the capture that an event was recorded in.
cudaError_t join_capture(cudaStream_t, const record&);

std::size_t new_lane();

// Unmaps or frees what is behind an allocation.
void release(allocation&);

// -------------------------------------------------------------------------------------- entering

// Whether the call is to fail without doing anything, and the code.
bool injected(int& code);

// The frame of every call: `body(lock)` returns the code. `refused` is what a call from inside an
// operation gets.
template <class Code, class Body>
Code enter(const char* function, Code refused, Body&& body) {
  caller& me = the_caller();
  if (me.in_work) {
    report(function, "called from inside work of a stream, which must not call the library");
    return refused;
  }
  machine& m = the_machine();
  std::unique_lock guard(m.lock);
  me.function = function;
  int code = 0;
  const Code result = injected(code) ? static_cast<Code>(code) : body(guard);
  me.function = "";
  guard.unlock();
  m.changed.notify_all();
  return result;
}

// A function of the runtime: keeps the error for cudaGetLastError.
template <class Body>
cudaError_t runtime_call(const char* function, Body&& body) {
  const cudaError_t code = enter(function, cudaErrorNotPermitted, std::forward<Body>(body));
  if (code != cudaSuccess) the_caller().last = code;
  return code;
}

}  // namespace emulation
