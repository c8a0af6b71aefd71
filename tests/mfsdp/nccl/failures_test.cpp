#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/emulated_gpus.hpp"

namespace nccl_failures_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using mfsdp_test::backend_of;
using mfsdp_test::emulated_gpus;
using mfsdp_test::tight_options;

namespace {

nccl_options impatient() {
  nccl_options options = tight_options();
  options.timeout = 400ms;
  return options;
}

deadline after(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

struct burnt_out : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How the function of a rank ended.
struct rank_outcome {
  std::string what{};
  bool rank_failed = false;  // rank_failure
};

std::vector<rank_outcome> outcomes_of(emulated_gpus& world,
                                      const std::function<void(nccl_collective&)>& body) {
  std::vector<rank_outcome> outcomes(static_cast<std::size_t>(world.size()));
  const auto start = std::chrono::steady_clock::now();
  try {
    world.run([&](nccl_collective collective) {
      rank_outcome& mine = outcomes[static_cast<std::size_t>(collective.rank())];
      try {
        body(collective);
      } catch (const rank_failure& e) {
        mine = {e.what(), true};
        throw;
      } catch (const std::exception& e) {
        mine = {e.what(), false};
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  return outcomes;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// An even gather of floats on the device, or of numbers in host memory.
struct even_gather {
  std::vector<piece> pieces;
  device_buffer<float> shard;
  device_buffer<float> full;
  nccl_collective::request running;

  even_gather(nccl_collective& collective, const cuda_backend& backend, index_t count,
              std::string_view label)
      : shard(backend.allocate<float>(count)),
        full(backend.allocate<float>(count * collective.size())) {
    for (int r = 0; r < collective.size(); ++r) pieces.push_back({r, r * count, 0, count});
    backend.fill(shard.span(), 1.0f);
    running = collective.start_all_gather(std::span<const float>(shard.span()), full.span(),
                                          std::span<const piece>(pieces), label);
  }
};

void gather_numbers(nccl_collective& collective, std::string_view label, deadline until) {
  std::vector<piece> pieces;
  for (int r = 0; r < collective.size(); ++r) pieces.push_back({r, r, 0, 1});
  const std::vector<double> own{1.0};
  std::vector<double> all(pieces.size());
  collective
      .start_all_gather(std::span<const double>(own), std::span<double>(all),
                        std::span<const piece>(pieces), label)
      .wait(until);
}

}  // namespace

TEST_CASE("a rank that does not come to the creation is found by the deadline") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::string what;
  try {
    nccl_communicator(id, 0, 2, 0, impatient());
  } catch (const collective_error& e) {
    what = e.what();
  }
  CHECK(says(what, "communicator of 2 ranks: rank 0 reached its deadline"));
}

TEST_CASE("a rank that throws releases the others at once, with its cause") {
  emulated_gpus world(3, tight_options());
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
      const cuda_backend backend = backend_of(collective);
      gather_numbers(collective, "before", after(5s));
      if (collective.rank() == 1) throw burnt_out("out of memory");
      if (on_device) {
        even_gather g(collective, backend, 100, "weights");
        g.running.wait(after(5s));
        collective.synchronize(after(5s));
      } else {
        gather_numbers(collective, "norms", after(5s));
      }
    });
    CHECK(outcomes[1].what == "out of memory");
    for (const std::size_t r : {0u, 2u}) {
      CHECK(outcomes[r].rank_failed);
      CHECK(outcomes[r].what == "rank 1 failed first: out of memory");
    }
  }
}

TEST_CASE("run rethrows the first exception") {
  emulated_gpus world(2, tight_options());
  CHECK_THROWS_AS(world.run([](nccl_collective collective) {
    if (collective.rank() == 1) throw burnt_out("first");
    gather_numbers(collective, "norms", after(5s));
  }),
                  burnt_out);
}

TEST_CASE("an operation to which a rank does not come is named after its deadline") {
  emulated_gpus world(2, impatient());
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    const cuda_backend backend = backend_of(collective);
    if (collective.rank() == 0) {
      even_gather g(collective, backend, 100, "block.3");
      g.running.wait(after(100ms));
      backend.wait();  // blocks in the runtime, until the watch aborts
      gather_numbers(collective, "norms", after(5s));
    } else {
      std::this_thread::sleep_for(1s);
      gather_numbers(collective, "norms", after(5s));
    }
  });
  CHECK(says(outcomes[0].what, "all-gather 'block.3'"));
  CHECK(says(outcomes[0].what, "rank 0 reached its deadline"));
  CHECK(outcomes[1].rank_failed);
  CHECK(says(outcomes[1].what, "rank 0 failed first: all-gather 'block.3'"));
}

TEST_CASE("a wait for an output in host memory has its own deadline") {
  emulated_gpus world(2, tight_options());
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    if (collective.rank() == 0) gather_numbers(collective, "norms", after(100ms));
    if (collective.rank() == 1) {
      std::this_thread::sleep_for(500ms);
      gather_numbers(collective, "norms", after(5s));
    }
  });
  CHECK(says(outcomes[0].what, "all-gather 'norms'"));
  CHECK(outcomes[1].rank_failed);
}

TEST_CASE("after a failure every call throws the first cause") {
  emulated_gpus world(2, impatient());
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    if (collective.rank() == 1) {
      std::this_thread::sleep_for(300ms);
      return;
    }
    std::string first;
    for (int i = 0; i < 3; ++i) {
      try {
        if (i < 2) gather_numbers(collective, "norms", after(50ms));
        if (i == 2) collective.synchronize(after(50ms));
      } catch (const collective_error& e) {
        if (i == 0) first = e.what();
        CHECK(e.what() == first);
      }
    }
    CHECK(says(first, "norms"));
    throw burnt_out("done");
  });
  CHECK(outcomes[0].what == "done");
}

TEST_CASE("ranks that start different operations are told both") {
  nccl_options options = tight_options();
  options.compare_calls = true;
  emulated_gpus world(2, options);
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    const cuda_backend backend = backend_of(collective);
    const index_t count = collective.rank() == 0 ? 100 : 60;
    even_gather g(collective, backend, count, collective.rank() == 0 ? "block.0" : "block.1");
    g.running.wait(after(5s));
    collective.synchronize(after(5s));
  });
  (void)emulation::take_errors();  // it finds that out, too
  int told = 0;
  for (const auto& outcome : outcomes) {
    CHECK(says(outcome.what, "differs between ranks"));
    CHECK(says(outcome.what, "200 x 4 'block.0'"));
    CHECK(says(outcome.what, "120 x 4 'block.1'"));
    told += outcome.rank_failed ? 0 : 1;
  }
  CHECK(told >= 1);
}

TEST_CASE("an error of NCCL is passed on with the operation") {
  emulated_gpus world(1, tight_options());
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    emulation::fail_call("ncclBroadcast", ncclSystemError);
    gather_numbers(collective, "norms", after(5s));
  });
  CHECK(says(outcomes[0].what, "all-gather 'norms'"));
  CHECK(says(outcomes[0].what, "NCCL: "));
}

TEST_CASE("a communicator goes with work under way, within its deadline") {
  emulated_gpus world(2, impatient());
  const auto outcomes = outcomes_of(world, [&](nccl_collective& collective) {
    if (collective.rank() == 1) return;
    const cuda_backend backend = backend_of(collective);
    even_gather g(collective, backend, 100, "lonely");
  });
  CHECK(outcomes[0].what.empty());
}

TEST_CASE("a request that nobody waits for disturbs nobody") {
  emulated_gpus world(3, tight_options());
  world.run([&](nccl_collective collective) {
    const cuda_backend backend = backend_of(collective);
    for (int i = 0; i < 5; ++i) {
      even_gather g(collective, backend, 1000, "dropped");
    }
    gather_numbers(collective, "norms", after(5s));
  });
}

TEST_CASE("what is asked of it wrongly is refused, and nothing is lost") {
  nccl_options options = tight_options();
  options.sums = sum_order::nccl;
  emulated_gpus world(2, options);
  world.run([&](nccl_collective collective) {
    const std::vector<bfloat16> narrow(4);
    std::vector<float> wide(4);
    const std::vector<piece> pieces{{0, 0, 0, 4}};
    CHECK_THROWS_AS(
        collective.start_all_reduce(std::span<const bfloat16>(narrow), std::span<float>(wide),
                                    std::span<const piece>(pieces), reduce_into::write, "sum"),
        usage_error);
    CHECK_THROWS_AS((void)collective.split(-1), spec_error);
    std::vector<char> large((std::size_t{64} << 20) + 1);
    CHECK_THROWS_AS(collective.start_all_gather(std::span<const char>(large), std::span<char>(),
                                                std::span<const piece>(), "large"),
                    usage_error);
    gather_numbers(collective, "norms", after(5s));
  });
}

TEST_CASE("ranks of other options are refused") {
  const emulation::session machine(mfsdp_test::machine_of(2));
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::string> what(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      nccl_options options = tight_options();
      if (rank == 1) options.sums = sum_order::nccl;
      try {
        nccl_communicator(id, rank, 2, rank, options);
      } catch (const error& e) {
        what[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const auto& w : what) CHECK(says(w, "have different nccl_options"));
  CHECK_THROWS_AS(nccl_threads({}), spec_error);
}

}  // namespace nccl_failures_test
