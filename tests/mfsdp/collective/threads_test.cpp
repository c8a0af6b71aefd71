#include "mfsdp/collective/threads.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/collective.hpp"

namespace threads_test {

using namespace mfsdp;
using namespace std::chrono_literals;

namespace {

using request = thread_collective::request;

deadline in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

// An exception of the user's own.
struct burnt : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How a rank's function ended.
struct outcome {
  enum class kind { none, returned, rank_failure, collective_error, other };
  kind how = kind::none;
  std::string what{};
};
using kind = outcome::kind;

outcome outcome_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const rank_failure& e) {
    return {kind::rank_failure, e.what()};
  } catch (const collective_error& e) {
    return {kind::collective_error, e.what()};
  } catch (const std::exception& e) {
    return {kind::other, e.what()};
  }
  return {kind::returned};
}

template <class... Part>
bool mentions(const std::string& text, const Part&... part) {
  return ((text.find(part) != std::string::npos) && ...);
}

struct report {
  std::vector<outcome> ranks;
  outcome world;
};

// Runs body on every rank; every test of failures goes through here and must end in time.
report run(thread_world& world, const std::function<void(thread_collective&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  report result{std::vector<outcome>(static_cast<std::size_t>(world.size())), {}};
  result.world = outcome_of([&] {
    world.run([&](thread_collective collective) {
      outcome& mine = result.ranks[static_cast<std::size_t>(collective.rank())];
      std::exception_ptr thrown;
      mine = outcome_of([&] {
        try {
          body(collective);
        } catch (...) {
          thrown = std::current_exception();
          throw;
        }
      });
      if (thrown) std::rethrow_exception(thrown);
    });
  });
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  return result;
}

// One rank's part of an even all-gather or a reduce-scatter, with buffers of its own. They are
// destroyed after the request, as members are.
struct operation {
  std::vector<piece> pieces;
  std::vector<float> shard;
  std::vector<float> full;
  std::string label;
  request running;

  operation(const thread_collective& collective, index_t count, std::string name)
      : shard(static_cast<std::size_t>(count), static_cast<float>(collective.rank())),
        full(static_cast<std::size_t>(count * collective.size())),
        label(std::move(name)) {
    for (int rank = 0; rank < collective.size(); ++rank) {
      pieces.push_back({rank, rank * count, 0, count});
    }
  }

  void start_gather(thread_collective collective) {
    running = collective.start_all_gather(std::span<const float>(shard), std::span<float>(full),
                                          std::span<const piece>(pieces), label);
  }
  void start_reduce(thread_collective collective) {
    running =
        collective.start_reduce_scatter(std::span<const float>(full), std::span<float>(shard),
                                        std::span<const piece>(pieces), reduce_into::write, label);
  }
};

void gather(thread_collective& collective, std::string label = "weights",
            std::chrono::milliseconds patience = 4s, index_t count = 1000) {
  operation op(collective, count, std::move(label));
  op.start_gather(collective);
  op.running.wait(in(patience));
  op.running.drain(in(patience));
}

// Releases those who wait for the end of a scope, however it ends.
struct scope_end {
  std::latch& ended;
  ~scope_end() { ended.count_down(); }
};

void check_usable(thread_world& world) {
  const report after = run(world, [](thread_collective& collective) { gather(collective); });
  CHECK(after.world.how == kind::returned);
}

}  // namespace

TEST_CASE("thread_world conforms") {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
    CAPTURE(ranks);
    thread_world world(ranks);
    mfsdp_test::collective_conformance(world);
    mfsdp_test::split_conformance(world);
  }
}

TEST_CASE("the suite's inputs tell one order of ranks from another") {
  int different = 0;
  for (index_t i = 0; i < 100; ++i) {
    const auto x = [&](int rank) { return mfsdp_test::element<float>(rank, i); };
    different += x(0) + x(1) + x(2) != x(2) + x(1) + x(0);
  }
  CHECK(different > 10);
}

TEST_CASE("a world needs a rank") {
  CHECK_THROWS_AS(thread_world(0), spec_error);
  CHECK(thread_world(3).size() == 3);
}

TEST_CASE("a rank that throws releases the others, wherever they are") {
  thread_world world(4);
  const auto throws_on_rank_2 = [](const thread_collective& c) {
    if (c.rank() == 2) throw burnt("out of memory");
  };
  const auto check = [&](const std::function<void(thread_collective&)>& body) {
    const report result = run(world, body);
    CHECK(result.world.how == kind::other);
    CHECK(result.world.what == "out of memory");
    for (const int rank : {0, 1, 3}) {
      const outcome& other = result.ranks[rank];
      CHECK(other.how == kind::rank_failure);
      CHECK(other.what == "rank 2 failed first: out of memory");
    }
    check_usable(world);
  };
  for (int repeat = 0; repeat < 20; ++repeat) {
    // before its first operation
    check([&](thread_collective& c) {
      throws_on_rank_2(c);
      gather(c);
    });
    // between operations
    check([&](thread_collective& c) {
      gather(c);
      throws_on_rank_2(c);
      gather(c);
    });
    // with operations outstanding, complete ones among them
    check([&](thread_collective& c) {
      operation first(c, 20000, "first");
      operation second(c, 20000, "second");
      first.start_gather(c);
      second.start_reduce(c);
      if (c.rank() != 0) first.running.wait(in(4s));
      throws_on_rank_2(c);
      second.running.wait(in(4s));
      first.running.drain(in(4s));
      gather(c);
    });
    // while the others only test
    check([&](thread_collective& c) {
      operation op(c, 100, "tested");
      throws_on_rank_2(c);
      op.start_gather(c);
      while (!op.running.test()) std::this_thread::yield();
    });
    // while the others drain
    check([&](thread_collective& c) {
      operation op(c, 20000, "drained");
      op.start_gather(c);
      throws_on_rank_2(c);
      op.running.wait(in(4s));
      op.running.drain(in(4s));
      gather(c);
    });
  }
}

TEST_CASE("run rethrows the first exception with its type") {
  thread_world world(3);
  CHECK_THROWS_AS(world.run([](thread_collective c) {
    if (c.rank() == 1) throw burnt("mine");
    gather(c);
  }),
                  burnt);
  int caught = 0;
  try {
    world.run([](thread_collective c) {
      if (c.rank() == 1) throw 42;
      gather(c);
    });
  } catch (int value) {
    caught = value;
  }
  CHECK(caught == 42);
}

TEST_CASE("a rank that returns early is named") {
  thread_world world(4);
  for (const bool tests : {false, true}) {
    const report result = run(world, [&](thread_collective& c) {
      gather(c);
      if (c.rank() == 1) return;
      operation op(c, 10, "norms");
      op.start_gather(c);
      while (tests && !op.running.test()) std::this_thread::yield();
      op.running.wait(in(4s));
    });
    CHECK(result.ranks[1].how == kind::returned);
    int first = 0;
    for (const int rank : {0, 2, 3}) {
      first += result.ranks[rank].how == kind::collective_error;
      CHECK(mentions(result.ranks[rank].what, "all-gather 'norms' (collective 1)",
                     "waits for rank 1, which has returned"));
    }
    CHECK(first == 1);
    CHECK(result.world.how == kind::collective_error);
  }
}

TEST_CASE("a deadline names the operation, who waits and who is missing") {
  thread_world world(4);
  std::latch given_up(1);
  const report result = run(world, [&](thread_collective& c) {
    gather(c);
    if (c.rank() == 0) {
      const scope_end end{given_up};
      gather(c, "late", 200ms);
    }
    if (c.rank() != 2) given_up.wait();
    gather(c, "late");
  });
  CHECK(result.ranks[0].how == kind::collective_error);
  CHECK(result.ranks[0].what ==
        "all-gather 'late' (collective 1): rank 0 reached its deadline waiting for rank 1, 3");
  for (const int rank : {1, 2, 3}) {
    CHECK(result.ranks[rank].how == kind::rank_failure);
    CHECK(result.ranks[rank].what == "rank 0 failed first: " + result.ranks[0].what);
  }
  CHECK(result.world.what == result.ranks[0].what);
}

TEST_CASE("a deadline of drain names who still reads") {
  thread_world world(3);
  std::latch given_up(1);
  const report result = run(world, [&](thread_collective& c) {
    operation op(c, 10, "shared");
    op.start_gather(c);
    if (c.rank() == 2) given_up.wait();
    op.running.wait(in(4s));
    if (c.rank() == 0) {
      const scope_end end{given_up};
      op.running.drain(in(200ms));
    }
    op.running.drain(in(4s));
  });
  CHECK(result.ranks[0].what ==
        "all-gather 'shared' (collective 0): rank 0 reached its deadline waiting for rank 2");
  CHECK(result.ranks[2].how == kind::rank_failure);
}

TEST_CASE("the destructor of a request waits no longer than the world's timeout") {
  thread_world world(2, {.timeout = 100ms});
  std::latch destroyed(1);
  const report result = run(world, [&](thread_collective& c) {
    if (c.rank() == 0) {
      const scope_end end{destroyed};
      operation op(c, 10, "kept");
      op.start_gather(c);
      op.running.wait(in(4s));
    } else {
      operation op(c, 10, "kept");
      op.start_gather(c);
      destroyed.wait();
      op.running.wait(in(4s));
    }
  });
  CHECK(result.ranks[0].how == kind::returned);
  CHECK(result.ranks[1].how == kind::rank_failure);
  CHECK(result.world.what ==
        "all-gather 'kept' (collective 0): rank 0 reached its deadline waiting for rank 1");
}

TEST_CASE("different calls are named, both of them") {
  thread_world world(3);
  const auto check = [&](const std::function<void(thread_collective&)>& body, const char* one,
                         const char* other) {
    const report result = run(world, body);
    CHECK(result.world.how == kind::collective_error);
    CHECK(mentions(result.world.what, "collective 1 differs between ranks", one, other));
    for (const outcome& rank : result.ranks) CHECK(mentions(rank.what, one, other));
  };
  check(
      [](thread_collective& c) {
        gather(c);
        gather(c, "w", 4s, c.rank() == 1 ? 11 : 10);
      },
      "all-gather 'w' of 30 elements of 4 bytes", "rank 1 started all-gather 'w' of 33 elements");
  check(
      [](thread_collective& c) {
        gather(c);
        gather(c, c.rank() == 1 ? "a label that is too long to be stored in place" : "w");
      },
      "started all-gather 'w'", "all-gather 'a label that is too long to be stored in place'");
  check(
      [](thread_collective& c) {
        gather(c);
        operation op(c, 10, "w");
        c.rank() == 2 ? op.start_reduce(c) : op.start_gather(c);
        op.running.wait(in(4s));
      },
      "started all-gather 'w'", "rank 2 started reduce-scatter 'w'");
  check(
      [](thread_collective& c) {
        gather(c);
        if (c.rank() != 0) return gather(c, "w", 4s, 1);
        const std::vector<double> shard(1);
        std::vector<double> full(3);
        const std::vector<piece> pieces = {{0, 0, 0, 1}, {1, 1, 0, 1}, {2, 2, 0, 1}};
        c.start_all_gather(std::span<const double>(shard), std::span<double>(full),
                           std::span<const piece>(pieces), "w")
            .wait(in(4s));
      },
      "3 elements of 8 bytes", "3 elements of 4 bytes");
  check_usable(world);
}

TEST_CASE("a request given up fails the operation on every rank") {
  thread_world world(3);
  const std::string cause =
      "all-gather 'given up' (collective 0): rank 1 gave it up before every rank had finished";
  SUBCASE("destroyed") {
    const report result = run(world, [](thread_collective& c) {
      operation op(c, 50000, "given up");
      op.start_gather(c);
      if (c.rank() != 1) op.running.wait(in(4s));
    });
    CHECK(result.ranks[1].how == kind::returned);
    CHECK(result.world.what == cause);
    // The others may have finished before.
    for (const int rank : {0, 2}) {
      CHECK((result.ranks[rank].how == kind::returned ||
             result.ranks[rank].what == "rank 1 failed first: " + cause));
    }
  }
  SUBCASE("replaced") {
    const report result = run(world, [](thread_collective& c) {
      operation op(c, 50000, "given up");
      op.start_gather(c);
      if (c.rank() == 1) op.running = {};
      op.running.wait(in(4s));
    });
    CHECK(result.world.what == cause);
  }
  SUBCASE("by an exception that the rank's function catches") {
    const report result = run(world, [](thread_collective& c) {
      try {
        operation op(c, 50000, "given up");
        op.start_gather(c);
        if (c.rank() == 1) throw burnt("caught");
        op.running.wait(in(4s));
      } catch (const burnt&) {
      }
      gather(c);
    });
    CHECK(result.ranks[1].how == kind::collective_error);
    CHECK(result.world.what == cause);
    for (const int rank : {0, 2}) CHECK(result.ranks[rank].how == kind::rank_failure);
  }
  SUBCASE("by an exception that the rank's function catches before it returns") {
    const report result = run(world, [](thread_collective& c) {
      try {
        operation op(c, 50000, "given up");
        op.start_gather(c);
        if (c.rank() == 1) throw burnt("caught");
        op.running.wait(in(4s));
      } catch (const burnt&) {
      }
    });
    CHECK(result.ranks[1].how == kind::returned);
    CHECK(result.world.what == cause);
  }
  check_usable(world);
}

TEST_CASE("no waiting forever for a rank that goes on without its operation") {
  thread_world world(2);
  std::latch thrown(1);
  std::latch ended(1);
  const report result = run(world, [&](thread_collective& c) {
    if (c.rank() == 1) {
      try {
        operation op(c, 10, "given up");
        op.start_gather(c);
        throw burnt("caught");
      } catch (const burnt&) {
        thrown.count_down();
      }
      ended.wait();
    } else {
      thrown.wait();
      const scope_end end{ended};
      gather(c, "given up", 100ms, 10);
    }
  });
  CHECK(result.ranks[0].what ==
        "all-gather 'given up' (collective 0): rank 0 reached its deadline waiting for rank 1");
}

TEST_CASE("a failed world goes on failing") {
  thread_world world(2);
  const report result = run(world, [](thread_collective& c) {
    if (c.rank() == 1) throw burnt("first");
    CHECK_THROWS_AS(gather(c), rank_failure);
    gather(c);
  });
  CHECK(result.ranks[0].how == kind::rank_failure);
}

TEST_CASE("groups count what their own ranks read") {
  thread_world world(4);
  const report result = run(world, [](thread_collective& c) {
    thread_collective pair = c.split(c.rank() % 2);
    const std::int64_t before = c.bytes_read();
    gather(pair, "weights", 4s, 100);
    CHECK(pair.bytes_read() == 400);
    CHECK(c.bytes_read() == before);
  });
  CHECK(result.world.how == kind::returned);
}

TEST_CASE("a rank that throws ends the waits of all groups, its own and others") {
  thread_world world(6);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const report result = run(world, [&](thread_collective& c) {
      thread_collective row = c.split(c.rank() / 3);
      thread_collective column = c.split(c.rank() % 3);
      gather(row);
      if (c.rank() == 4) throw burnt("out of memory");
      // Rank 0 to 2 only work in a group that rank 4 is not in, until that fails, too.
      for (;;) gather(c.rank() < 3 ? row : column);
    });
    CHECK(result.world.what == "out of memory");
    for (const int rank : {0, 1, 2, 3, 5}) {
      CHECK(result.ranks[rank].what == "rank 4 failed first: out of memory");
    }
  }
  check_usable(world);
}

TEST_CASE("no input of a group is read while a rank outside it unwinds") {
  // Rank 2 unwinds past a request, then takes its time; rank 0 frees an input that rank 1 has not
  // read.
  thread_world world(3);
  bool read = false;
  std::latch transferred(1);
  std::latch unwinding(1);
  std::latch freed(1);
  const report result = run(world, [&](thread_collective& c) {
    thread_collective group = c.split(c.rank() / 2);
    if (c.rank() == 2) {
      struct slow {
        std::latch& begun;
        std::latch& until;
        ~slow() {
          begun.count_down();
          until.wait();
        }
      };
      const slow late{unwinding, freed};
      operation op(c, 10, "never complete");
      op.start_gather(c);
      transferred.wait();
      throw burnt("slowly");
    }
    auto op = std::make_unique<operation>(group, 1000, "freed");
    op->start_gather(group);
    if (c.rank() == 0) {
      const scope_end end{freed};
      op->running.wait(in(4s));
      transferred.count_down();
      unwinding.wait();
      op.reset();
    } else {
      freed.wait();
      op->running.wait(in(4s));
      read = true;
    }
  });
  CHECK(!read);
  CHECK(result.world.what == "slowly");
}

TEST_CASE("a rank that returns is missed by its own groups only") {
  thread_world world(4);
  const report result = run(world, [&](thread_collective& c) {
    thread_collective pair = c.split(c.rank() / 2);
    if (c.rank() == 3) return;
    if (c.rank() != 2) {
      for (int i = 0; i < 50; ++i) gather(pair);
      return;
    }
    std::this_thread::sleep_for(20ms);
    gather(pair, "norms");
  });
  CHECK(result.world.what ==
        "all-gather 'norms' (collective 0): rank 2 waits for rank 3, which has returned");
}

TEST_CASE("ranks that wait for each other in different groups are told at once") {
  thread_world world(4);
  const report result = run(world, [](thread_collective& c) {
    thread_collective pair = c.split(c.rank() / 2);
    if (c.rank() % 2 == 0) gather(pair, "in a pair", 60s);
    gather(c, "of all", 60s);
  });
  CHECK(mentions(result.world.what, "no rank can go on",
                 "all-gather 'in a pair' (collective 0): rank 2 waits for 3",
                 "all-gather 'of all' (collective 1): rank 3 waits for 0, 2"));
}

TEST_CASE("a deadline in a group names ranks of the world and ends the others") {
  thread_world world(4);
  std::latch given_up(1);
  const report result = run(world, [&](thread_collective& c) {
    thread_collective pair = c.split(c.rank() / 2);
    if (c.rank() == 2) {
      const scope_end end{given_up};
      gather(pair, "late", 100ms);
    }
    if (c.rank() == 3) given_up.wait();
    gather(c, "of all");
  });
  CHECK(result.world.what ==
        "all-gather 'late' (collective 0): rank 2 reached its deadline waiting for rank 3");
  for (const int rank : {0, 1, 3}) {
    CHECK(result.ranks[rank].what == "rank 2 failed first: " + result.world.what);
  }
}

TEST_CASE("random failures at random points") {
  constexpr int ranks = 4;
  constexpr int length = 12;
  thread_world world(ranks);
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 engine(seed);
    const auto random = [&] { return static_cast<unsigned>(engine()); };
    const int victim = static_cast<int>(random() % ranks);
    const unsigned moment = random() % length;
    const unsigned way = random() % 4;  // throw before or after start, return, forget
    std::vector<unsigned> script(length);
    for (unsigned& action : script) action = random();

    const report result = run(world, [&](thread_collective& all) {
      std::vector<thread_collective> groups{all, all.split(all.rank() / 2),
                                            all.split(all.rank() % 2)};
      std::vector<operation> ahead;
      for (unsigned step = 0; step < length; ++step) {
        thread_collective& c = groups[script[step] / 64 % 3];
        const bool fails = all.rank() == victim && step == moment;
        if (fails && way == 0) throw burnt("injected");
        if (fails && way == 1) return;
        operation op(c, 1 + script[step] % 3000, "a label of more than sixteen characters");
        script[step] % 2 == 0 ? op.start_gather(c) : op.start_reduce(c);
        if (fails && way == 2) throw burnt("injected");
        if (fails && way == 3) op.running = {};
        ahead.push_back(std::move(op));
        // Wait for the newest or the oldest, and keep some outstanding.
        if (script[step] % 3 == 0) ahead.back().running.wait(in(4s));
        if (ahead.size() > script[step] / 8 % 4) {
          ahead.front().running.drain(in(4s));
          ahead.erase(ahead.begin());
        }
      }
      for (operation& op : ahead) op.running.drain(in(4s));
    });
    CHECK(result.world.how != kind::returned);
    CHECK(result.world.how != kind::rank_failure);
    if (way == 0 || way == 2) CHECK(result.world.what == "injected");
    if (way == 3) CHECK(mentions(result.world.what, "rank " + std::to_string(victim)));
    for (const outcome& rank : result.ranks) {
      if (rank.how == kind::rank_failure) CHECK(mentions(rank.what, result.world.what));
    }
  }
}

}  // namespace threads_test
