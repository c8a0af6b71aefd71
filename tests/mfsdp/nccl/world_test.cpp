#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "emulation/nccl.hpp"
#include "support/emulated_gpus.hpp"
#include "support/plain_socket.hpp"

namespace nccl_world_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using mfsdp_test::tight_options;

namespace {

deadline in_five_seconds() {
  return std::chrono::steady_clock::now() + 5s;
}

// What each rank gives, by rank.
std::vector<int> ranks_gathered(nccl_collective& collective) {
  std::vector<piece> pieces;
  for (int r = 0; r < collective.size(); ++r) pieces.push_back({r, r, 0, 1});
  const std::vector<int> own{10 + collective.rank()};
  std::vector<int> all(pieces.size());
  collective
      .start_all_gather(std::span<const int>(own), std::span<int>(all),
                        std::span<const piece>(pieces), "ranks")
      .wait(in_five_seconds());
  return all;
}

// body(job) for every process of a job of `size`, each in a thread; what they throw, by rank.
std::vector<std::string> processes(int size, const std::function<void(const job&)>& body) {
  const int port = mfsdp_test::free_port();
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body({.rank = rank, .size = size, .local_rank = rank, .port = port, .id = "test"});
      } catch (const std::exception& e) {
        thrown[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  return thrown;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the processes of a job meet and run, more than once") {
  const emulation::session machine(mfsdp_test::machine_of(3));
  const auto thrown = processes(3, [](const job& here) {
    nccl_world world(here, tight_options());
    CHECK(world.rank() == here.rank);
    CHECK(world.size() == 3);
    CHECK(world.device() == here.local_rank);
    for (int i = 0; i < 2; ++i) {
      world.run([&](nccl_collective collective) {
        CHECK(collective.device() == here.local_rank);
        CHECK(ranks_gathered(collective) == std::vector<int>{10, 11, 12});
      });
    }
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("the processes of a job hear of a failure over the connections by which they met") {
  const emulation::session machine(mfsdp_test::machine_of(3));
  for (const int failing : {0, 2}) {
    const auto thrown = processes(3, [&](const job& here) {
      nccl_world world(here, tight_options());
      world.run([&](nccl_collective collective) {
        if (here.rank == failing) throw std::runtime_error("a disk is full");
        (void)ranks_gathered(collective);
      });
    });
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(thrown[static_cast<std::size_t>(rank)] ==
            (rank == failing ? "a disk is full"
                             : fmt::format("rank {} failed first: a disk is full", failing)));
    }
  }
}

TEST_CASE("a process without a device of its own is refused") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  std::string what;
  try {
    nccl_world({.rank = 2, .size = 3, .local_rank = 2, .port = 1, .id = ""});
  } catch (const spec_error& e) {
    what = e.what();
  }
  CHECK(says(what, "rank 2 is process 2 of its machine, which has 2 devices"));
}

TEST_CASE("ranks meet by any broadcast of bytes") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  const auto thrown = processes(2, [](const job& here) {
    rendezvous meeting(here);
    const auto broadcast = [&](std::span<char> bytes) {
      const std::string all = meeting.share({bytes.data(), bytes.size()}, 5s);
      std::copy(all.begin(), all.end(), bytes.begin());
    };
    const auto communicator =
        nccl_communicator::by_broadcast(here.rank, 2, here.local_rank, broadcast, tight_options());
    nccl_collective collective = communicator.collective();
    CHECK(ranks_gathered(collective) == std::vector<int>{10, 11});
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("a communicator of the caller's is used, and stays his") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const auto thrown = processes(2, [&](const job& here) {
    const cuda::device_scope device(here.rank);
    ncclComm_t own = nullptr;
    REQUIRE(ncclCommInitRank(&own, 2, id, here.rank) == ncclSuccess);
    {
      const auto communicator = nccl_communicator::borrow(own, tight_options());
      nccl_collective collective = communicator.collective();
      CHECK(collective.device() == here.rank);
      CHECK(ranks_gathered(collective) == std::vector<int>{10, 11});
      CHECK(!communicator.failed());
    }
    CHECK(ncclCommDestroy(own) == ncclSuccess);
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("an error that NCCL reports of another machine ends the run") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  const auto thrown = processes(2, [](const job& here) {
    nccl_world world(here, tight_options());
    world.run([&](nccl_collective collective) {
      (void)ranks_gathered(collective);
      if (here.rank == 1) emulation::fail_communicators(1, ncclRemoteError);
      while (true) (void)ranks_gathered(collective);
    });
  });
  CHECK(says(thrown[1], "rank 1: NCCL: "));
  CHECK(says(thrown[0], "rank 1 failed first: "));
}

}  // namespace nccl_world_test
