#include "emulation/machine.hpp"

#include <cstdio>

namespace emulation {

machine& the_machine() {
  static machine& only = *[] {
    auto* made = new machine;  // never destroyed: programs may call in their last destructors
    made->bytes_in_use.resize(1);
    made->copiers.resize(1);
    made->copiers[0].lane = made->lanes++;
    return made;
  }();
  return only;
}

caller& the_caller() {
  thread_local caller me;
  return me;
}

void report(std::string_view who, const std::string& what) {
  machine& m = the_machine();
  m.errors.push_back(fmt::format("{}: {}", who, what));
  if (m.printed) return;
  m.printed = true;
  fmt::print(stderr, "emulation: {}\n", m.errors.back());
  std::fflush(stderr);
}

std::size_t new_lane() {
  return the_machine().lanes++;
}

bool injected(int& code) {
  machine& m = the_machine();
  for (auto i = m.failures.begin(); i != m.failures.end(); ++i) {
    if (i->function != the_caller().function || --i->after > 0) continue;
    code = i->code;
    m.failures.erase(i);
    return true;
  }
  return false;
}

// ------------------------------------------------------------------------------------ for the test

void reset(const configuration& how) {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  for (auto& [address, each] : m.memory) release(*each);
  m.memory.clear();
  for (const auto& clear : m.at_reset) clear();
  m.how = how;
  m.streams = {};
  m.events = {};
  m.graphs = {};
  m.executables = {};
  m.captures.clear();
  m.lanes = 0;
  m.host = {};
  m.bytes_in_use.assign(static_cast<std::size_t>(how.devices), 0);
  m.copiers.assign(static_cast<std::size_t>(how.devices), {});
  for (timeline& each : m.copiers) each.lane = new_lane();
  m.errors.clear();
  m.printed = false;
  m.counts = {};
  m.allocation_to_fail = 0;
  m.failures.clear();
  the_caller() = {};
}

std::vector<std::string> errors() {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  return m.errors;
}

std::vector<std::string> take_errors() {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  m.printed = false;
  return std::exchange(m.errors, {});
}

std::vector<std::string> leaks() {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  std::vector<std::string> found;
  for (const auto& [address, each] : m.memory) {
    if (each->freed_by.empty()) found.push_back(fmt::format("leak: {}", each->name));
  }
  const auto add = [&](const auto& all, std::string_view kind) {
    for (const auto& each : all) {
      if (!each->destroyed) found.push_back(fmt::format("leak: {} {}", kind, each->number));
    }
  };
  add(m.streams, "stream");
  add(m.events, "event");
  add(m.graphs, "graph");
  add(m.executables, "executable graph");
  for (const auto& other : m.leak_reports) other(found);
  return found;
}

counters counts() {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  return m.counts;
}

void fail_allocation(int n) {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  m.allocation_to_fail = n;
}

void fail_call(std::string_view function, int code, int n) {
  machine& m = the_machine();
  const std::lock_guard guard(m.lock);
  m.failures.push_back({std::string(function), code, n});
}

}  // namespace emulation
