// Streams, events, kernels: queues of work, when it is done, and whether it is ordered.
#include <sys/mman.h>
#include <unistd.h>

#include "emulation/machine.hpp"

namespace emulation {

std::string describe(cudaStream_t stream) {
  return fmt::format("stream {} of device {}", stream->number, stream->device);
}

cudaError_t check(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return refuse(cudaErrorInvalidResourceHandle,
                  "the default stream orders itself with others behind the program's back");
  }
  if (!the_machine().streams.knows(stream)) {
    return refuse(cudaErrorInvalidResourceHandle, "no stream of this machine");
  }
  if (stream->destroyed) {
    return refuse(cudaErrorInvalidResourceHandle, describe(stream) + " was destroyed");
  }
  return cudaSuccess;
}

cudaError_t check_current(cudaStream_t stream) {
  if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
  if (stream->device == the_caller().device) return cudaSuccess;
  return refuse(cudaErrorInvalidResourceHandle,
                fmt::format("{}, but device {} is current", describe(stream), the_caller().device));
}

namespace {

cudaError_t check(cudaEvent_t event) {
  if (!the_machine().events.knows(event)) {
    return refuse(cudaErrorInvalidResourceHandle, "no event of this machine");
  }
  if (event->destroyed) {
    return refuse(cudaErrorInvalidResourceHandle,
                  fmt::format("event {} was destroyed", event->number));
  }
  return cudaSuccess;
}

bool writes(use how) {
  return how == use::write || how == use::update;
}

void check_order(const operation& what, const access& each, const timeline& now) {
  if (each.bytes == 0) return;
  allocation& a = *find(each.address);
  const std::size_t first =
      static_cast<std::size_t>(static_cast<const char*>(each.address) - a.address);
  const std::size_t last = first + each.bytes;
  const touch by{now.lane, now.clock[now.lane], what.name};
  if (each.how == use::read && !a.history.written(first, last)) {
    report(*what.name, fmt::format("reads bytes {} to {} of {}, not all of which have been written",
                                   first, last, a.name));
  }
  const auto found = writes(each.how) ? a.history.write(first, last, by, now.clock)
                                      : a.history.read(first, last, by, now.clock);
  if (found) {
    report(*what.name,
           fmt::format("{} bytes {} to {} of {}, and is not ordered after {}, which {} there",
                       writes(each.how) ? "writes" : "reads", first, last, a.name,
                       *found->earlier.operation, found->wrote ? "writes" : "reads"));
  }
}

}  // namespace

bool touch_memory(const operation& what, const timeline& now) {
  if (!check(*what.name, what.device, what.accesses)) return false;
  for (const access& each : what.accesses) check_order(what, each, now);
  return true;
}

void perform(const operation& what, timeline& now) {
  now.clock.join(what.host);
  now.clock.tick(now.lane, now.clock[now.lane] + 1);
  now.microseconds += what.microseconds;
  if (!touch_memory(what, now)) return;
  const bool outer = std::exchange(the_caller().in_work, true);
  try {
    what.body(now);
  } catch (const std::exception& error) {
    report(*what.name, fmt::format("threw: {}", error.what()));
  }
  the_caller().in_work = outer;
}

void advance(cudaStream_t stream, std::uint64_t until) {
  if (stream->advancing) return;
  stream->advancing = true;
  while (stream->done < until && !stream->queue.empty()) {
    operation& next = stream->queue.front();
    if (next.ready && !next.ready()) break;
    perform(next, stream->line);
    stream->queue.pop_front();
    ++stream->done;
  }
  stream->advancing = false;
}

cudaError_t issue(cudaStream_t stream, operation what) {
  machine& m = the_machine();
  if (what.device != any_device) what.device = stream->device;
  if (!check(*what.name, what.device, what.accesses)) return cudaErrorIllegalAddress;
  if (stream->captured) {
    CUgraph_st& graph = *stream->captured->graph;
    graph.nodes.push_back({std::move(what), stream->frontier, stream->branch});
    stream->frontier = {graph.nodes.size() - 1};
    return cudaSuccess;
  }
  if (what.counted != nullptr) ++(m.counts.*what.counted);
  what.host = m.host;
  stream->queue.push_back(std::move(what));
  ++stream->issued;
  if (m.how.at_once) advance(stream, stream->issued);
  return cudaSuccess;
}

bool await(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done,
           const std::function<std::string()>& where) {
  machine& m = the_machine();
  const auto deadline = std::chrono::steady_clock::now() + m.how.patience;
  while (!done()) {
    if (m.changed.wait_until(lock, deadline) != std::cv_status::timeout || done()) continue;
    report(the_caller().function, "hangs: " + where());
    return false;
  }
  return true;
}

std::string position(cudaStream_t stream) {
  return fmt::format("{} does not get beyond {}", describe(stream),
                     stream->queue.empty() ? "its end" : *stream->queue.front().name);
}

bool finish(std::unique_lock<std::mutex>& lock, cudaStream_t stream) {
  const std::uint64_t last = stream->issued;
  const bool done = await(
      lock,
      [&] {
        advance(stream, last);
        return stream->done >= last;
      },
      [&] { return position(stream); });
  the_machine().host.join(stream->line.clock);
  return done;
}

bool finish_device(std::unique_lock<std::mutex>& lock, int device) {
  std::vector<cudaStream_t> streams;  // others may make more meanwhile
  for (const auto& each : the_machine().streams) {
    if (each->device == device) streams.push_back(each.get());
  }
  for (const cudaStream_t each : streams) {
    if (!finish(lock, each)) return false;
  }
  return true;
}

namespace {

bool reach(const record& last) {
  if (!last.done) advance(last.stream, last.position);
  return last.done;
}

// Lets the host use the device memory of a kernel while it runs.
class opened {
 public:
  explicit opened(const std::vector<access>& accesses) : accesses_(accesses) {
    for (const access& each : accesses) {
      if (!writes(each.how)) protect(each, PROT_READ);
    }
    for (const access& each : accesses) {
      if (writes(each.how)) protect(each, PROT_READ | PROT_WRITE);
    }
  }
  ~opened() {
    for (const access& each : accesses_) protect(each, PROT_NONE);
  }
  opened(const opened&) = delete;
  opened& operator=(const opened&) = delete;

 private:
  static void protect(const access& each, int how) {
    if (each.bytes == 0 || find(each.address)->pinned) return;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(each.address);
    const auto begin = first / page * page;
    mprotect(reinterpret_cast<void*>(begin), first + each.bytes - begin, how);
  }

  const std::vector<access>& accesses_;
};

}  // namespace

cudaError_t launch(cudaStream_t stream, std::string_view name, std::vector<access> accesses,
                   std::function<void()> body) {
  return runtime_call("launch", [&](auto&) {
    if (const cudaError_t code = check_current(stream); code != cudaSuccess) return code;
    operation kernel;
    kernel.name = shared_name(fmt::format("kernel {} in {}", name, describe(stream)));
    kernel.accesses = accesses;
    kernel.body = [accesses = std::move(accesses), body = std::move(body)](timeline&) {
      const opened during(accesses);
      body();
    };
    kernel.counted = &counters::launches;
    return issue(stream, std::move(kernel));
  });
}

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* result, unsigned int flags) {
  return runtime_call("cudaStreamCreateWithFlags", [&](auto&) {
    if (flags != cudaStreamNonBlocking) {
      return refuse(cudaErrorInvalidValue, "only streams that do not wait for the default stream");
    }
    machine& m = the_machine();
    *result = m.streams.make();
    (*result)->device = the_caller().device;
    (*result)->number = m.streams.size();
    (*result)->line.lane = new_lane();
    return cudaSuccess;
  });
}

// What is queued is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return runtime_call("cudaStreamDestroy", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (stream->captured) {
      invalidate(*stream->captured);
      return refuse(cudaErrorStreamCaptureUnsupported, describe(stream) + " is captured");
    }
    advance(stream, stream->issued);
    stream->destroyed = true;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return runtime_call("cudaStreamSynchronize", [&](auto& lock) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    ++the_machine().counts.host_synchronisations;
    return finish(lock, stream) ? cudaSuccess : cudaErrorLaunchTimeout;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return runtime_call("cudaDeviceSynchronize", [&](auto& lock) {
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    ++the_machine().counts.host_synchronisations;
    return finish_device(lock, the_caller().device) ? cudaSuccess : cudaErrorLaunchTimeout;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return runtime_call("cudaStreamQuery", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    advance(stream, stream->issued);
    if (stream->done != stream->issued) return cudaErrorNotReady;
    the_machine().host.join(stream->line.clock);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return runtime_call("cudaStreamWaitEvent", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (const cudaError_t code = check(event); code != cudaSuccess) return code;
    const std::shared_ptr<record> last = event->last;
    if (!last) return cudaSuccess;
    if (last->captured) return join_capture(stream, *last);
    if (stream->captured) {
      invalidate(*stream->captured);
      return refuse(cudaErrorStreamCaptureIsolation,
                    fmt::format("{} is captured, and event {} was recorded before that",
                                describe(stream), event->number));
    }
    operation wait;
    wait.name = shared_name(fmt::format("wait for event {} of {} in {}", event->number,
                                        describe(last->stream), describe(stream)));
    wait.microseconds = 0;
    wait.ready = [last] { return reach(*last); };
    wait.body = [last](timeline& now) {
      now.clock.join(last->clock);
      now.microseconds = std::max(now.microseconds, last->microseconds);
    };
    return issue(stream, std::move(wait));
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return runtime_call("cudaLaunchHostFunc", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    operation call;
    call.name = shared_name(fmt::format("host function in {}", describe(stream)));
    call.body = [=](timeline&) { function(data); };
    return issue(stream, std::move(call));
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* result, unsigned int flags) {
  return runtime_call("cudaEventCreateWithFlags", [&](auto&) {
    machine& m = the_machine();
    *result = m.events.make();
    (*result)->device = the_caller().device;
    (*result)->number = m.events.size();
    (*result)->timing = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return runtime_call("cudaEventDestroy", [&](auto&) {
    if (const cudaError_t code = check(event); code != cudaSuccess) return code;
    event->destroyed = true;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return runtime_call("cudaEventRecord", [&](auto&) {
    if (const cudaError_t code = check(event); code != cudaSuccess) return code;
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (event->device != stream->device) {
      return refuse(cudaErrorInvalidResourceHandle,
                    fmt::format("event {} of device {} in {}", event->number, event->device,
                                describe(stream)));
    }
    const auto last = std::make_shared<record>();
    last->stream = stream;
    event->last = last;
    if (stream->captured) {
      last->captured = stream->captured;
      last->nodes = stream->frontier;
      return cudaSuccess;
    }
    operation mark;
    mark.name =
        shared_name(fmt::format("record of event {} in {}", event->number, describe(stream)));
    mark.microseconds = 0;
    mark.body = [last](timeline& now) {
      last->done = true;
      last->clock = now.clock;
      last->microseconds = now.microseconds;
    };
    last->position = stream->issued + 1;
    return issue(stream, std::move(mark));
  });
}

namespace {

cudaError_t check_outside_capture(cudaEvent_t event) {
  if (const cudaError_t code = check(event); code != cudaSuccess) return code;
  if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
  if (event->last && event->last->captured) {
    return refuse(cudaErrorCapturedEvent,
                  fmt::format("event {} was recorded in a capture", event->number));
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return runtime_call("cudaEventQuery", [&](auto&) {
    if (const auto code = check_outside_capture(event); code != cudaSuccess) return code;
    if (!event->last) return cudaSuccess;
    if (!reach(*event->last)) return cudaErrorNotReady;
    the_machine().host.join(event->last->clock);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return runtime_call("cudaEventSynchronize", [&](auto& lock) {
    if (const auto code = check_outside_capture(event); code != cudaSuccess) return code;
    ++the_machine().counts.host_synchronisations;
    const std::shared_ptr<record> last = event->last;
    if (!last) return cudaSuccess;
    if (!await(lock, [&] { return reach(*last); }, [&] { return position(last->stream); })) {
      return cudaErrorLaunchTimeout;
    }
    the_machine().host.join(last->clock);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return runtime_call("cudaEventElapsedTime", [&](auto&) {
    for (const cudaEvent_t event : {begin, end}) {
      if (const auto code = check_outside_capture(event); code != cudaSuccess) return code;
      if (!event->timing || !event->last) {
        return refuse(cudaErrorInvalidResourceHandle,
                      fmt::format("event {} {}", event->number,
                                  event->timing ? "was never recorded" : "does not take the time"));
      }
      if (!event->last->done) return cudaErrorNotReady;
    }
    *milliseconds =
        static_cast<float>((end->last->microseconds - begin->last->microseconds) / 1000);
    return cudaSuccess;
  });
}
