#include "mfsdp/collective/rendezvous.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/plain_socket.hpp"

namespace rendezvous_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using mfsdp_test::free_port;
using mfsdp_test::plain_socket;

namespace {

job job_at(int port, int rank, int size) {
  return {.rank = rank, .size = size, .local_rank = 0, .port = port, .id = "test"};
}

struct meeting_outcome {
  std::unique_ptr<rendezvous> meeting{};
  std::string error{};
};

// Every job in a thread of its own.
std::vector<meeting_outcome> meet(const std::vector<job>& jobs,
                                  std::chrono::milliseconds timeout = 20s) {
  std::vector<meeting_outcome> outcomes(jobs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        outcomes[i].meeting = std::make_unique<rendezvous>(jobs[i], timeout);
      } catch (const collective_error& e) {
        outcomes[i].error = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return outcomes;
}

bool says(const meeting_outcome& outcome, const std::string& part) {
  return outcome.error.find(part) != std::string::npos;
}

std::optional<rank_notices::failure> heard_soon(rendezvous& of) {
  for (int i = 0; i < 5000; ++i) {
    if (auto failure = of.heard()) return failure;
    std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("ranks meet and share what rank 0 has") {
  for (const int size : {1, 2, 5}) {
    CAPTURE(size);
    const int port = free_port();
    std::vector<job> jobs;
    for (int r = 0; r < size; ++r) jobs.push_back(job_at(port, r, size));
    auto outcomes = meet(jobs);
    const std::string all(1000, 'x');
    // Twice without a pause: what comes early is kept, also by who looks for failures meanwhile.
    for (int i = 0; i < 2; ++i) CHECK(outcomes[0].meeting->share(all, 20s) == all);
    for (std::size_t r = 1; r < outcomes.size(); ++r) {
      CHECK(outcomes[r].meeting->share({}, 20s) == all);
      CHECK(!outcomes[r].meeting->heard());
      CHECK(outcomes[r].meeting->share({}, 20s) == all);
    }
  }
}

TEST_CASE("a rank may be late, and rank 0 too") {
  for (const int late : {0, 2}) {
    const int port = free_port();
    std::vector<meeting_outcome> rest;
    std::thread early([&] {
      std::vector<job> jobs;
      for (int r = 0; r < 3; ++r) {
        if (r != late) jobs.push_back(job_at(port, r, 3));
      }
      rest = meet(jobs);
    });
    std::this_thread::sleep_for(100ms);
    CHECK(meet({job_at(port, late, 3)})[0].error.empty());
    early.join();
    for (const auto& outcome : rest) CHECK(outcome.error.empty());
  }
}

TEST_CASE("who does not come is named, on all ranks that did") {
  const int port = free_port();
  const auto outcomes = meet({job_at(port, 0, 4), job_at(port, 2, 4)}, 300ms);
  CHECK(says(outcomes[0], "ranks 1, 3 of 4 did not come in time"));
  CHECK(!outcomes[1].error.empty());
}

TEST_CASE("without rank 0 nobody waits for ever") {
  const auto outcomes = meet({job_at(free_port(), 1, 2)}, 200ms);
  CHECK(says(outcomes[0], "rank 1 of 2 reached its deadline, nobody listens there"));
}

TEST_CASE("ranks of other numbers of ranks are told so") {
  const int port = free_port();
  const auto outcomes = meet({job_at(port, 0, 3), job_at(port, 1, 2)});
  for (const auto& outcome : outcomes) {
    CHECK(says(outcome, "rank 1 was started as one of 2 ranks, rank 0 as one of 3"));
  }
}

TEST_CASE("a rank that comes twice is named on all ranks") {
  const int port = free_port();
  const auto outcomes = meet({job_at(port, 0, 3), job_at(port, 1, 3), job_at(port, 1, 3)});
  for (const auto& outcome : outcomes) CHECK(says(outcome, "rank 1 came twice"));
}

TEST_CASE("strangers do not disturb") {
  const int port = free_port();
  std::vector<meeting_outcome> outcomes;
  std::thread all([&] { outcomes = meet({job_at(port, 0, 3), job_at(port, 1, 3)}); });
  plain_socket garbage(port);
  garbage.connect_there();
  REQUIRE(send(garbage.file, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
  char none = 0;
  CHECK(recv(garbage.file, &none, 1, 0) <= 0);  // turned away
  plain_socket silent(port);
  silent.connect_there();
  plain_socket half(port);
  half.connect_there();
  REQUIRE(send(half.file, "mfsdp rendez", 12, MSG_NOSIGNAL) == 12);
  job other = job_at(port, 1, 2);
  other.id = "another";
  CHECK(says(meet({other})[0], "of another job"));
  CHECK(meet({job_at(port, 2, 3)})[0].error.empty());
  all.join();
  for (const auto& outcome : outcomes) CHECK(outcome.error.empty());
}

TEST_CASE("a port that another program has is named") {
  plain_socket other(0);
  const int port = other.listen_there();
  const auto outcomes = meet({job_at(port, 0, 2), job_at(port, 1, 2)}, 300ms);
  CHECK(says(outcomes[0], "the port is taken"));
  CHECK(says(outcomes[0], "MFSDP_RENDEZVOUS_PORT"));
  CHECK(says(outcomes[1], "MFSDP_RENDEZVOUS_PORT"));
}

TEST_CASE("a failure reaches all ranks, with its cause") {
  for (const std::size_t failing : {0u, 2u}) {
    const int port = free_port();
    auto outcomes = meet({job_at(port, 0, 3), job_at(port, 1, 3), job_at(port, 2, 3)});
    CHECK(!outcomes[1].meeting->heard());
    outcomes[failing].meeting->tell("out of memory");
    for (const std::size_t rank : {0u, 1u, 2u}) {
      if (rank == failing) continue;
      const auto failure = heard_soon(*outcomes[rank].meeting);
      REQUIRE(failure);
      CHECK(failure->rank == static_cast<int>(failing));
      CHECK(failure->cause == "out of memory");
    }
  }
}

TEST_CASE("a rank that leaves is no failure, a process that ends without a word is") {
  for (const bool says_so : {true, false}) {
    CAPTURE(says_so);
    const int port = free_port();
    const pid_t process = fork();
    if (process == 0) {
      try {
        rendezvous mine(job_at(port, 1, 3));
        (void)mine.share({}, 20s);
        if (!says_so) _exit(0);
      } catch (const collective_error&) {
      }
      _exit(1);
    }
    auto outcomes = meet({job_at(port, 0, 3), job_at(port, 2, 3)});
    REQUIRE(outcomes[0].error.empty());
    REQUIRE(outcomes[1].error.empty());
    (void)outcomes[0].meeting->share("go", 20s);
    int status = 0;
    REQUIRE(waitpid(process, &status, 0) == process);
    for (auto& outcome : outcomes) {
      const auto failure = says_so ? outcome.meeting->heard() : heard_soon(*outcome.meeting);
      REQUIRE(failure.has_value() == !says_so);
      if (failure) CHECK(failure->rank == 1);
      if (failure) CHECK(failure->cause == "its process has ended without a word");
    }
  }
}

}  // namespace rendezvous_test
