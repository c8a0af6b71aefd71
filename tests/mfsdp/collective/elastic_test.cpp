#include "mfsdp/collective/elastic.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/collective.hpp"

namespace elastic_test {

using namespace mfsdp;
using namespace std::chrono_literals;

static_assert(ElasticCollective<elastic_collective>);
static_assert(AllGather<elastic_collective, float> && AllReduce<elastic_collective, float>);
static_assert(!ReduceScatter<elastic_collective, float>);

namespace {

constexpr auto patient = elastic_options{.round_timeout = 30s};  // nobody is dropped
constexpr auto impatient = elastic_options{.round_timeout = 300ms};

deadline soon() {
  return std::chrono::steady_clock::now() + 30s;
}

// Nothing here may wait for the patient timeout.
struct timed {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  ~timed() { CHECK(std::chrono::steady_clock::now() - start < 20s); }
};

// The sum of 10^seat over who has come, so that its digits name them.
int sum(elastic_collective& self, std::string_view label = "sum") {
  int own = 1;
  for (int seat = 0; seat < self.rank(); ++seat) own *= 10;
  int all = 0;
  const std::vector<piece> pieces{{0, 0, 0, 1}};
  auto request = self.start_all_reduce(std::span<const int>(&own, 1), std::span(&all, 1),
                                       std::span<const piece>(pieces), reduce_into::write, label);
  request.wait(soon());
  request.drain(soon());
  return all;
}

std::vector<int> gather(elastic_collective& self, int own, std::string_view label = "gather") {
  std::vector<int> all(static_cast<std::size_t>(self.size()), -1);
  std::vector<piece> pieces;
  for (int seat = 0; seat < self.size(); ++seat) pieces.push_back({seat, seat, 0, 1});
  auto request = self.start_all_gather(std::span<const int>(&own, 1), std::span(all),
                                       std::span<const piece>(pieces), label);
  request.wait(soon());
  return all;
}

// What the members of a run saw, by seat.
struct sums_seen {
  std::mutex mutex;
  std::map<int, std::vector<int>> sums;
  void add(int seat, int value) {
    const std::unique_lock guard(mutex);
    sums[seat].push_back(value);
  }
};

template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

bool mentions(const std::string& text, std::string_view part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

struct conforming_world {
  elastic_world members;
  [[nodiscard]] int size() const { return members.size(); }
  template <class Body>
  void run(Body body) {
    for (const member_failure& failure : members.run(body)) FAIL_CHECK(failure.what);
  }
};

}  // namespace

TEST_CASE("elastic_world conforms in gathers and sums while nobody is missing") {
  for (const int seats : {1, 2, 3, 5}) {
    conforming_world world{elastic_world{seats, patient}};
    mfsdp_test::all_gather_conformance<float>(world);
    mfsdp_test::all_gather_conformance<double>(world);
    mfsdp_test::all_gather_conformance<std::uint64_t>(world);
    mfsdp_test::all_gather_conformance<bfloat16>(world);
    mfsdp_test::all_reduce_conformance<float>(world);
    mfsdp_test::all_reduce_conformance<double>(world);
    mfsdp_test::all_reduce_conformance<bfloat16, float>(world);
    mfsdp_test::many_conformance(world);
    mfsdp_test::drain_conformance(world);
    mfsdp_test::request_conformance(world);
  }
}

TEST_CASE("a member that throws or returns leaves at once, and sums go on without it") {
  const timed in_time;
  for (const bool throws : {true, false}) {
    elastic_world world{3, patient};
    sums_seen seen;
    const auto failures = world.run([&](elastic_collective self) {
      for (int round = 0; round < 4; ++round) {
        if (self.rank() == 1 && round == 2) {
          if (throws) throw std::runtime_error("no more disk");
          return;
        }
        seen.add(self.rank(), sum(self));
      }
      const auto all = gather(self, 7);
      CHECK(all == std::vector{7, 0, 7});
    });
    CHECK(seen.sums[0] == std::vector{111, 111, 101, 101});
    CHECK(seen.sums[2] == seen.sums[0]);
    CHECK(seen.sums[1] == std::vector{111, 111});
    REQUIRE(failures.size() == (throws ? 1 : 0));
    if (throws) CHECK((failures[0].seat == 1 && failures[0].what == "no more disk"));
  }
}

TEST_CASE("what a member has given counts even if it is gone before the others come") {
  const timed in_time;
  elastic_world world{2, patient};
  std::latch gone{1};
  sums_seen seen;
  const auto failures = world.run([&](elastic_collective self) {
    if (self.rank() == 1) {
      {
        std::vector<int> own{10};
        int all = 0;
        const std::vector<piece> pieces{{0, 0, 0, 1}};
        auto given =
            self.start_all_reduce(std::span<const int>(own), std::span(&all, 1),
                                  std::span<const piece>(pieces), reduce_into::write, "sum");
        own[0] = -1;  // a copy is on its way
      }
      gone.count_down();
      return;
    }
    gone.wait();
    seen.add(0, sum(self));
    seen.add(0, sum(self));
  });
  CHECK(failures.empty());
  CHECK(seen.sums[0] == std::vector{11, 1});
}

TEST_CASE("who does not come in time is dropped, is told so, and may join again") {
  const timed in_time;
  elastic_world world{3, impatient};
  std::latch over{2};
  std::latch joined{1};
  std::string told;
  sums_seen seen;
  const auto failures = world.run([&](elastic_collective self) {
    CHECK(gather(self, 1, "greeting") == std::vector{1, 1, 1});
    seen.add(self.rank(), sum(self));
    if (self.rank() == 0) {
      over.wait();
      told = message_of<member_dropped>([&] { (void)sum(self); });
      CHECK(!self.joins());
      // Whatever it tries now.
      CHECK(message_of<member_dropped>([&] { (void)self.admit(soon()); }) == told);
      const int seat = world.join([&](elastic_collective again) {
        CHECK(again.joins());
        joined.count_down();
        CHECK(again.admit(soon()) == admission{1, {0}});
        CHECK(!again.joins());
        seen.add(again.rank(), sum(again));
      });
      CHECK(seat == 0);
      return;
    }
    seen.add(self.rank(), sum(self, "second"));
    over.count_down();
    joined.wait();
    admission now;
    while (now.joined.empty()) now = self.admit(soon());
    CHECK(now == admission{1, {0}});
    seen.add(self.rank(), sum(self));
  });
  CHECK(failures.empty());
  CHECK(mentions(told,
                 "all-reduce 'second' of 1 elements of 4 bytes (operation 2) went on without "
                 "the member on seat 0"));
  CHECK(mentions(told, "may join again"));
  CHECK(seen.sums[1] == std::vector{111, 110, 111});
  CHECK(seen.sums[2] == seen.sums[1]);
  CHECK(seen.sums[0] == std::vector{111, 111});
}

TEST_CASE("all but one may go") {
  const timed in_time;
  elastic_world world{4, patient};
  sums_seen seen;
  const auto failures = world.run([&](elastic_collective self) {
    for (int round = 0; round < 4; ++round) {
      if (round == self.rank()) {
        if (self.rank() != 3) throw std::runtime_error("gone");
      }
      seen.add(self.rank(), sum(self));
    }
  });
  CHECK(failures.size() == 3);
  CHECK(seen.sums[3] == std::vector{1110, 1100, 1000, 1000});
}

TEST_CASE("the first exception comes out if nobody has ended well") {
  elastic_world world{2, patient};
  CHECK_THROWS_WITH_AS(
      (void)world.run([](elastic_collective) { throw std::runtime_error("both"); }), "both",
      std::runtime_error);
  // And the world may run again.
  CHECK(world.run([](elastic_collective self) { CHECK(sum(self) == 11); }).empty());
}

TEST_CASE("a newcomer talks to nobody until it is let in") {
  const timed in_time;
  elastic_world world{3, {.founders = 2, .round_timeout = 30s}};
  std::latch met{2};
  std::latch asked{1};
  sums_seen seen;
  const auto failures = world.run([&](elastic_collective self) {
    CHECK(gather(self, 5 + self.rank(), "charter") == std::vector{5, 6, 0});
    seen.add(self.rank(), sum(self));
    CHECK(gather(self, 8, "later") == std::vector{8, 8, 0});
    met.arrive_and_wait();
    if (self.rank() == 0) {
      CHECK(self.admit(soon()).joined.empty());
      const int seat = world.join([&](elastic_collective joiner) {
        // What the founders said at the start, its own words among it.
        CHECK(gather(joiner, 9, "charter") == std::vector{5, 6, 9});
        CHECK(mentions(message_of<collective_error>([&] { (void)gather(joiner, 1, "later"); }),
                       "the first members made no such call"));
        CHECK(mentions(message_of<usage_error>([&] { (void)sum(joiner); }), "has not joined yet"));
        asked.count_down();
        CHECK(joiner.admit(soon()) == admission{0, {2}});
        seen.add(joiner.rank(), sum(joiner));
      });
      CHECK(seat == 2);
    } else {
      CHECK(self.admit(soon()).joined.empty());
    }
    asked.wait();
    admission now;
    while (now.joined.empty()) now = self.admit(soon());
    CHECK(now == admission{0, {2}});
    seen.add(self.rank(), sum(self));
  });
  for (const auto& failure : failures) FAIL_CHECK(failure.what);
  CHECK(seen.sums[0] == std::vector{11, 111});
  CHECK(seen.sums[1] == seen.sums[0]);
  CHECK(seen.sums[2] == std::vector{111});
}

TEST_CASE("joining needs a free seat, a run, and somebody to let one in") {
  const timed in_time;
  elastic_world world{2, patient};
  const auto nothing = [](elastic_collective) {};
  CHECK(mentions(message_of<usage_error>([&] { (void)world.join(nothing); }), "does not run"));
  const auto refusal = [](int seats, elastic_options options) {
    return message_of<spec_error>([&] { elastic_world(seats, options); });
  };
  CHECK(refusal(0, {}) == "elastic_world: 0 seats; give it at least one");
  CHECK(refusal(2, {.founders = 3}) ==
        "elastic_world: 3 founders for 2 seats; give it at most one a seat, or 0 for one on each");
  CHECK(refusal(2, {.round_timeout = 0ms}) ==
        "elastic_world: round_timeout is 0 ms; it must be positive");
  std::string left_alone;
  std::latch waits{1};
  const auto failures = world.run([&](elastic_collective self) {
    (void)sum(self);
    if (self.rank() == 1) return;
    std::string full;
    for (int seat = -1; seat < 0;) {  // until the other one has left
      full = message_of<usage_error>([&] {
        seat = world.join([&](elastic_collective joiner) {
          CHECK(joiner.rank() == 1);
          waits.count_down();
          left_alone = message_of<collective_error>([&] { (void)joiner.admit(soon()); });
        });
      });
      if (seat < 0) CHECK(mentions(full, "all 2 seats of the elastic_world are taken"));
    }
    CHECK(mentions(message_of<usage_error>([&] { (void)world.join(nothing); }),
                   "all 2 seats of the elastic_world are taken"));
    CHECK(mentions(message_of<usage_error>([&] { (void)world.run(nothing); }), "runs already"));
    waits.wait();
  });
  CHECK(failures.empty());
  CHECK(mentions(left_alone, "seat 1 was left alone before the others let it in"));
}

TEST_CASE("deadlines of the caller count, too") {
  const timed in_time;
  elastic_world world{3, {.founders = 2, .round_timeout = 30s}};
  std::latch over{3};
  const auto failures = world.run([&](elastic_collective self) {
    const auto now = [] { return std::chrono::steady_clock::now() + 50ms; };
    (void)sum(self);
    if (self.rank() == 0) {
      const int own = 1;
      int all = 0;
      const std::vector<piece> pieces{{0, 0, 0, 1}};
      auto request =
          self.start_all_reduce(std::span(&own, 1), std::span(&all, 1),
                                std::span<const piece>(pieces), reduce_into::write, "alone");
      CHECK(!request.test());
      CHECK(mentions(message_of<collective_error>([&] { request.wait(now()); }),
                     "waiting for seat 1, without which"));
      (void)world.join([&](elastic_collective joiner) {
        CHECK(mentions(message_of<collective_error>([&] { (void)joiner.admit(now()); }),
                       "seat 2 reached its deadline before the others let it in"));
        CHECK(joiner.joins());
        over.count_down();
      });
    }
    over.arrive_and_wait();
  });
  for (const auto& failure : failures) FAIL_CHECK(failure.what);
}

TEST_CASE("another call than that of the others costs the seat") {
  const timed in_time;
  elastic_world world{3, patient};
  std::atomic<int> different = 0;
  std::latch first{2};
  const auto failures = world.run([&](elastic_collective self) {
    if (self.rank() == 1) {
      first.wait();
      const std::string what = message_of<member_dropped>([&] { (void)sum(self, "other"); });
      different += mentions(what, "operation 0 differs between members: seat") &&
                   mentions(what, "all-reduce 'other' of 1 elements of 4 bytes");
      return;
    }
    const int own = 1;
    int all = 0;
    const std::vector<piece> pieces{{0, 0, 0, 1}};
    auto request = self.start_all_reduce(std::span(&own, 1), std::span(&all, 1),
                                         std::span<const piece>(pieces), reduce_into::write, "sum");
    first.count_down();
    request.wait(soon());
    CHECK(all == 2);
  });
  CHECK(failures.empty());
  CHECK(different == 1);
}

TEST_CASE("members that come and go at random see equal sums and never wait for long") {
  const timed in_time;
  for (unsigned seed = 0; seed < 20; ++seed) {
    elastic_world world{5, {.founders = 4, .round_timeout = 30s}};
    std::mutex mutex;
    std::map<int, std::vector<int>> by_round;  // what each member saw of a round
    std::atomic<int> joins = 0;
    std::atomic<int> round_now = 0;
    constexpr int rounds = 60;
    const auto live = [&](elastic_collective& self, int round, std::mt19937& random,
                          const auto& newcomer) {
      for (; round < rounds; ++round) {
        if (self.rank() == 0) round_now = round + 1;
        if (self.rank() != 0 && random() % 40 == 0) {
          if (random() % 2 == 0) return;
          throw std::runtime_error("gone");
        }
        if (random() % 16 == 0) {
          try {
            world.join(newcomer);
            ++joins;
          } catch (const usage_error&) {  // full
          }
        }
        const int all = sum(self);
        {
          const std::unique_lock guard(mutex);
          by_round[round].push_back(all);
        }
        const admission now = self.admit(soon());
        if (!now.joined.empty()) {
          const std::vector<int> counts = gather(self, round);
          CHECK(counts[static_cast<std::size_t>(now.giver)] == round);
        }
      }
    };
    std::function<void(elastic_collective)> newcomer = [&](elastic_collective self) {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(joins));
      admission now;
      try {
        now = self.admit(soon());
      } catch (const collective_error&) {
        return;  // the others have ended
      }
      const std::vector<int> counts = gather(self, 0);
      live(self, counts[static_cast<std::size_t>(now.giver)] + 1, random, newcomer);
    };
    (void)world.run([&](elastic_collective self) {
      std::mt19937 random(seed * 100 + static_cast<unsigned>(self.rank()));
      live(self, 0, random, newcomer);
    });
    REQUIRE(by_round.size() == rounds);
    for (const auto& [round, sums] : by_round) {
      CAPTURE(round);
      // Everyone who counts has seen the sum: as many as it has digits that are 1. Some may have
      // been gone before they could say so; nobody vanishes between here.
      const std::string digits = std::to_string(sums[0]);
      CHECK(std::ranges::count(sums, sums[0]) == std::ssize(sums));
      CHECK(std::ranges::count(digits, '1') == std::ssize(sums));
      CHECK(digits.find_first_not_of("01") == std::string::npos);
    }
  }
}

TEST_CASE("members may wait for each other for ever") {
  elastic_world world{2, {.round_timeout = std::chrono::milliseconds::max()}};
  const auto failures = world.run([](elastic_collective self) {
    if (self.rank() == 1) std::this_thread::sleep_for(50ms);
    CHECK(sum(self) == 11);
  });
  CHECK(failures.empty());
}

}  // namespace elastic_test
