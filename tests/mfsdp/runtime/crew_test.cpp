#include "mfsdp/runtime/crew.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace crew_test {

using mfsdp::crew;

TEST_CASE("every task runs once, in every run") {
  for (const int count : {1, 2, 5}) {
    crew threads(count);
    CHECK(threads.count() == count);
    for (const std::size_t tasks : {0u, 1u, 3u, 100u}) {
      std::vector<std::atomic<int>> runs(tasks);
      std::atomic<bool> known = true;
      threads.run(tasks, [&](std::size_t i, int member) {
        ++runs[i];
        if (member < 0 || member >= count) known = false;
      });
      CHECK(known);
      for (const auto& run : runs) CHECK(run == 1);
    }
  }
}

TEST_CASE("tasks run at the same time") {
  crew threads(2);
  std::atomic<int> inside = 0;
  // Each waits for the other, so one thread alone would never end.
  threads.run(2, [&](std::size_t, int) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  CHECK(inside == 2);
}

TEST_CASE("an exception of a task reaches the caller, and the crew works on") {
  crew threads(3);
  std::atomic<int> runs = 0;
  const auto fails = [&] {
    threads.run(50, [&](std::size_t i, int) {
      ++runs;
      if (i == 7) throw std::runtime_error("task 7");
    });
  };
  CHECK_THROWS_WITH_AS(fails(), "task 7", std::runtime_error);
  CHECK(runs >= 8);
  runs = 0;
  threads.run(10, [&](std::size_t, int) { ++runs; });
  CHECK(runs == 10);
}

}  // namespace crew_test
