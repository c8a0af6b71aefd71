#include "mfsdp/runtime/workers.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using mfsdp::workers;

TEST_CASE("every task runs once, in every run") {
  for (const int count : {1, 2, 5}) {
    workers crew(count);
    CHECK(crew.count() == count);
    for (const std::size_t tasks : {0u, 1u, 3u, 100u}) {
      std::vector<std::atomic<int>> runs(tasks);
      std::atomic<bool> known = true;
      crew.run(tasks, [&](std::size_t i, int worker) {
        ++runs[i];
        if (worker < 0 || worker >= count) known = false;
      });
      CHECK(known);
      for (const auto& run : runs) CHECK(run == 1);
    }
  }
}

TEST_CASE("tasks run at the same time") {
  workers crew(2);
  std::atomic<int> inside = 0;
  // Each waits for the other, so one thread alone would never end.
  crew.run(2, [&](std::size_t, int) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  CHECK(inside == 2);
}

TEST_CASE("an exception of a task reaches the caller, and the crew works on") {
  workers crew(3);
  std::atomic<int> runs = 0;
  const auto fails = [&] {
    crew.run(50, [&](std::size_t i, int) {
      ++runs;
      if (i == 7) throw std::runtime_error("task 7");
    });
  };
  CHECK_THROWS_WITH_AS(fails(), "task 7", std::runtime_error);
  CHECK(runs >= 8);
  runs = 0;
  crew.run(10, [&](std::size_t, int) { ++runs; });
  CHECK(runs == 10);
}
