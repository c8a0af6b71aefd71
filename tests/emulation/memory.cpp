// Memory of devices, pinned memory, copies.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "emulation/machine.hpp"

namespace emulation {

namespace {

const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

std::size_t up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Two mappings of the same pages; behind both lies a page that nobody can touch. The allocation
// ends where its last page ends, so that it begins at a multiple of 256 and of little else.
bool map_device_memory(allocation& a) {
  const std::size_t data = up(up(a.bytes, 256), page);
  const int file = memfd_create("emulated device memory", 0);
  if (file < 0) return false;
  void* closed = MAP_FAILED;
  void* open = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(data)) == 0) {
    closed =
        mmap(nullptr, data + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    open =
        mmap(nullptr, data + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  const bool mapped =
      closed != MAP_FAILED && open != MAP_FAILED &&
      mmap(closed, data, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED &&
      mmap(open, data, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
  close(file);
  if (!mapped) return false;
  const std::size_t before = data - up(a.bytes, 256);
  a.closed = closed;
  a.open = open;
  a.mapped = data + page;
  a.address = static_cast<char*>(closed) + before;
  a.view = static_cast<char*>(open) + before;
  std::memset(open, 0xFF, data);
  return true;
}

// Whether this allocation is to fail; counts it.
bool no_memory() {
  machine& m = the_machine();
  ++m.counts.allocations;
  return m.allocation_to_fail > 0 && --m.allocation_to_fail == 0;
}

cudaError_t allocate(void** result, std::size_t bytes, int device, bool pinned) {
  machine& m = the_machine();
  if (result == nullptr) return refuse(cudaErrorInvalidValue, "no place for the address");
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (no_memory()) return cudaErrorMemoryAllocation;
  std::size_t& in_use = m.bytes_in_use[static_cast<std::size_t>(device)];
  if (!pinned && in_use + bytes > m.how.device_bytes) return cudaErrorMemoryAllocation;
  auto made = std::make_unique<allocation>(allocation{
      .name =
          fmt::format("{} bytes of {} {} (allocation {})", bytes,
                      pinned ? "pinned memory, device" : "device", device, m.counts.allocations),
      .device = device,
      .pinned = pinned,
      .bytes = bytes,
      .history = touch_history(bytes)});
  if (pinned) {
    made->address = made->view = static_cast<char*>(std::aligned_alloc(256, up(bytes, 256)));
    if (made->address == nullptr) return cudaErrorMemoryAllocation;
    std::memset(made->address, 0xFF, bytes);
  } else {
    if (!map_device_memory(*made)) return cudaErrorMemoryAllocation;
    in_use += bytes;
  }
  *result = made->address;
  m.memory[made->address] = std::move(made);
  return cudaSuccess;
}

// The living allocation that begins at an address, or null, which is reported.
allocation* owned(void* address, bool pinned) {
  allocation* const a = find(address);
  if (a == nullptr || a->address != address || a->pinned != pinned) {
    report(the_caller().function, fmt::format("{} is not what an allocation gave out", address));
  } else if (!a->freed_by.empty()) {
    report(the_caller().function, fmt::format("{} was freed by {} before", a->name, a->freed_by));
  } else {
    return a;
  }
  return nullptr;
}

// The addresses of device memory stay taken, so that they mean nothing else.
void give_back(allocation& a, std::string by) {
  release(a);
  a.freed_by = std::move(by);
  if (a.pinned) {
    the_machine().memory.erase(a.address);  // the host's allocator gives them out again
    return;
  }
  the_machine().bytes_in_use[static_cast<std::size_t>(a.device)] -= a.bytes;
  a.closed = mmap(a.closed, a.mapped, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Waits for the device, as the driver does, but what the memory is used for should be known to be
// done before.
cudaError_t free_now(std::unique_lock<std::mutex>& lock, void* address, bool pinned) {
  if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
  if (address == nullptr) return cudaSuccess;
  machine& m = the_machine();
  allocation* const a = owned(address, pinned);
  if (a == nullptr) return cudaErrorInvalidValue;
  ++m.counts.host_synchronisations;
  const vector_clock waited_for = m.host;
  const bool done = finish_device(lock, a->device);
  if (const auto found = a->history.pending(waited_for)) {
    report(the_caller().function,
           fmt::format("{} is freed, and the host has not waited for {}, which {} it", a->name,
                       *found->earlier.operation, found->wrote ? "writes" : "reads"));
  }
  give_back(*a, the_caller().function);
  return done ? cudaSuccess : cudaErrorLaunchTimeout;
}

std::string_view kind_of(const allocation* a) {
  return a == nullptr ? "pageable" : a->pinned ? "pinned" : "device";
}

bool on_device(const allocation* a) {
  return a != nullptr && !a->pinned;
}

// The direction must be what the addresses say.
cudaError_t check_direction(cudaMemcpyKind kind, const allocation* to, const allocation* from) {
  const cudaMemcpyKind actual =
      on_device(to) ? (on_device(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                    : (on_device(from) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  if (kind == cudaMemcpyDefault || kind == actual) return cudaSuccess;
  return refuse(cudaErrorInvalidMemcpyDirection,
                fmt::format("the direction is {}, but this is a copy from {} to {} memory",
                            static_cast<int>(kind), kind_of(from), kind_of(to)));
}

operation copy_operation(void* to, const void* from, std::size_t bytes, std::string name) {
  const allocation* const target = find(to);
  const allocation* const source = find(from);
  operation copy;
  copy.name = shared_name(std::move(name));
  copy.device = any_device;
  // Copies may carry bytes that nothing has written: they stay NaN.
  if (source != nullptr) copy.accesses.push_back({from, bytes, use::read_any});
  if (target != nullptr) copy.accesses.push_back({to, bytes, use::write});
  copy.body = [=](timeline&) { std::memmove(view(to), view(from), bytes); };
  copy.microseconds = 1 + static_cast<double>(bytes) * 1e-5;
  copy.counted = &counters::copies;
  return copy;
}

}  // namespace

allocation* find(const void* address) {
  machine& m = the_machine();
  const char* const at = static_cast<const char*>(address);
  auto i = m.memory.upper_bound(at);
  if (i == m.memory.begin()) return nullptr;
  allocation& a = *std::prev(i)->second;
  return at < a.address + a.bytes ? &a : nullptr;
}

void* view(const void* address) {
  const allocation* const a = find(address);
  char* const at = static_cast<char*>(const_cast<void*>(address));
  return a == nullptr ? at : a->view + (at - a->address);
}

void release(allocation& a) {
  if (a.pinned) {
    std::free(a.address);
    return;
  }
  if (a.freed_by.empty()) munmap(a.open, a.mapped);
  munmap(a.closed, a.mapped);
}

bool check(std::string_view who, int device, const std::vector<access>& accesses) {
  for (const access& each : accesses) {
    if (each.bytes == 0) continue;
    const allocation* const a = find(each.address);
    if (a == nullptr) {
      report(who, fmt::format("{} is not memory of a device, nor pinned", each.address));
      return false;
    }
    if (!a->freed_by.empty()) {
      report(who, fmt::format("uses {}, which {} has freed", a->name, a->freed_by));
      return false;
    }
    const std::size_t first =
        static_cast<std::size_t>(static_cast<const char*>(each.address) - a->address);
    if (each.bytes > a->bytes - first) {
      report(who, fmt::format("uses {} bytes from byte {} on of {}: {} too many", each.bytes, first,
                              a->name, each.bytes - (a->bytes - first)));
      return false;
    }
    if (!a->pinned && device != any_device && a->device != device) {
      report(who, fmt::format("runs on device {} and uses {}", device, a->name));
      return false;
    }
  }
  return true;
}

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return runtime_call("cudaMalloc", [&](auto&) {
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    return allocate(address, bytes, the_caller().device, false);
  });
}

cudaError_t cudaFree(void* address) {
  return runtime_call("cudaFree", [&](auto& lock) { return free_now(lock, address, false); });
}

cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  return runtime_call("cudaMallocAsync", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    const cudaError_t code = allocate(address, bytes, stream->device, false);
    if (code != cudaSuccess || bytes == 0) return code;
    find(*address)->stream_ordered = true;
    operation begin;
    begin.name = shared_name(fmt::format("cudaMallocAsync in {}", describe(stream)));
    begin.accesses = {{*address, bytes, use::write}};
    begin.body = [](timeline&) {};
    return issue(stream, std::move(begin));
  });
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return runtime_call("cudaFreeAsync", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    if (address == nullptr) return cudaSuccess;
    allocation* const a = owned(address, false);
    if (a == nullptr) return cudaErrorInvalidValue;
    if (!a->stream_ordered) {
      return refuse(cudaErrorInvalidValue, fmt::format("{} is not from cudaMallocAsync", a->name));
    }
    operation end;
    end.name = shared_name(fmt::format("cudaFreeAsync in {}", describe(stream)));
    end.accesses = {{address, a->bytes, use::write}};
    end.body = [a, name = end.name](timeline&) { give_back(*a, *name); };
    return issue(stream, std::move(end));
  });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int) {
  return runtime_call("cudaHostAlloc", [&](auto&) {
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    return allocate(address, bytes, the_caller().device, true);
  });
}

cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return runtime_call("cudaMallocHost", [&](auto&) {
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    return allocate(address, bytes, the_caller().device, true);
  });
}

cudaError_t cudaFreeHost(void* address) {
  return runtime_call("cudaFreeHost", [&](auto& lock) { return free_now(lock, address, true); });
}

cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
  return runtime_call("cudaMemGetInfo", [&](auto&) {
    machine& m = the_machine();
    *total = m.how.device_bytes;
    *unused = *total - m.bytes_in_use[static_cast<std::size_t>(the_caller().device)];
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result, const void* address) {
  return runtime_call("cudaPointerGetAttributes", [&](auto&) {
    *result = {};
    const allocation* const a = find(address);
    if (a == nullptr || !a->freed_by.empty()) {
      result->type = cudaMemoryTypeUnregistered;
      result->device = -1;
      result->hostPointer = const_cast<void*>(address);
      return cudaSuccess;
    }
    result->type = a->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    result->device = a->device;
    result->devicePointer = const_cast<void*>(address);
    if (a->pinned) result->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
  });
}

// From pageable memory the bytes are taken at once, into it the host waits: both may block.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return runtime_call("cudaMemcpyAsync", [&](auto& lock) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (bytes == 0) return cudaSuccess;
    const allocation* const target = find(to);
    const allocation* const source = find(from);
    if (const auto code = check_direction(kind, target, source); code != cudaSuccess) return code;
    machine& m = the_machine();
    const bool pageable = target == nullptr || source == nullptr;
    if (pageable) {
      ++m.counts.host_synchronisations;
      if (stream->captured) {
        invalidate(*stream->captured);
        return refuse(cudaErrorStreamCaptureUnsupported, "pageable memory in a capture");
      }
    }
    const auto name = [&](std::string_view what) {
      return fmt::format("{} of {} bytes from {} to {} memory in {}", what, bytes, kind_of(source),
                         kind_of(target), describe(stream));
    };
    operation copy = copy_operation(to, from, bytes, name("copy"));
    if (source == nullptr) {
      const auto taken = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
      copy.body = [=](timeline&) { std::memcpy(view(to), taken->data(), bytes); };
    }
    m.counts.bytes_copied += static_cast<long>(bytes);
    if (const cudaError_t code = issue(stream, std::move(copy)); code != cudaSuccess) return code;
    if (target != nullptr) return cudaSuccess;
    return finish(lock, stream) ? cudaSuccess : cudaErrorLaunchTimeout;
  });
}

// On a stream of its own kind, which no other waits for: only the host orders it.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return runtime_call("cudaMemcpy", [&](auto&) {
    if (const cudaError_t code = refuse_in_capture(); code != cudaSuccess) return code;
    const allocation* const target = find(to);
    const allocation* const source = find(from);
    if (const auto code = check_direction(kind, target, source); code != cudaSuccess) return code;
    machine& m = the_machine();
    ++m.counts.host_synchronisations;
    if (bytes == 0) return cudaSuccess;
    operation copy = copy_operation(to, from, bytes, fmt::format("cudaMemcpy of {} bytes", bytes));
    copy.host = m.host;
    if (!check(the_caller().function, copy.device, copy.accesses)) return cudaErrorInvalidValue;
    ++m.counts.copies;
    m.counts.bytes_copied += static_cast<long>(bytes);
    timeline& line = m.copiers[static_cast<std::size_t>(the_caller().device)];
    perform(copy, line);
    m.host.join(line.clock);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return runtime_call("cudaMemsetAsync", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (bytes == 0) return cudaSuccess;
    operation fill;
    fill.name = shared_name(fmt::format("memset of {} bytes in {}", bytes, describe(stream)));
    fill.accesses = {{to, bytes, use::write}};
    fill.body = [=](timeline&) { std::memset(view(to), value, bytes); };
    return issue(stream, std::move(fill));
  });
}
