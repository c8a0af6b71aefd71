#include "mfsdp/collective/messages.hpp"

#include "conformance/collective.hpp"
#include "support/local_wire.hpp"

namespace messages_test {

namespace {

using mfsdp::travel;
using mfsdp_test::message_world;

std::string what_of(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return e.what();
  }
}

bool is_rank_failure(const std::exception_ptr& thrown) {
  try {
    if (thrown != nullptr) std::rethrow_exception(thrown);
  } catch (const mfsdp::rank_failure&) {
    return true;
  } catch (...) {
  }
  return false;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

mfsdp::message_options impatient() {
  return {.timeout = std::chrono::milliseconds(1000), .parcel_bytes = 4096};
}

mfsdp::deadline in(int milliseconds) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

// An all-gather of as many floats of each rank.
template <class C>
struct gather {
  gather(C& c, mfsdp::index_t count, std::string_view label)
      : shard(static_cast<std::size_t>(count), 1.0f),
        full(static_cast<std::size_t>(count * c.size())) {
    for (int r = 0; r < c.size(); ++r) pieces.push_back({r, r * count, 0, count});
    request =
        c.start_all_gather(std::span<const float>(shard), std::span<float>(full), pieces, label);
  }
  std::vector<float> shard;
  std::vector<float> full;
  std::vector<mfsdp::piece> pieces;
  typename C::request request;
};

}  // namespace

TEST_CASE("messages conform, however they travel") {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const mfsdp::index_t bytes : {512, 256 * 1024}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      message_world direct(
          ranks, {.gathers = travel::direct, .sums = travel::direct, .parcel_bytes = bytes});
      mfsdp_test::collective_conformance(direct);
      message_world around(ranks,
                           {.gathers = travel::ring, .sums = travel::chain, .parcel_bytes = bytes});
      mfsdp_test::collective_conformance(around);
      mfsdp_test::split_conformance(around);
    }
  }
}

TEST_CASE("a ring sums in an order of its own, the same for equal owners") {
  message_world world(4, {.sums = travel::ring});
  const std::array<float, 4> terms{1e8f, 1.0f, -1e8f, 1.0f};
  world.run([&](auto c) {
    const std::vector<float> full(2, terms[static_cast<std::size_t>(c.rank())]);
    std::vector<float> shard(1);
    const std::vector<mfsdp::piece> pieces{{0, 0, 0, 1}, {1, 1, 0, 1}};
    auto request = c.start_reduce_scatter(std::span<const float>(full), std::span<float>(shard),
                                          pieces, mfsdp::reduce_into::write, "sum");
    request.wait(in(10000));
    request.drain(in(10000));
    const auto ordered = [&](int first) {
      float sum = terms[static_cast<std::size_t>(first)];
      for (int i = 1; i < 4; ++i) sum += terms[static_cast<std::size_t>((first + i) % 4)];
      return sum;
    };
    if (c.rank() < 2 && shard[0] != ordered(c.rank() + 1))
      throw std::runtime_error("another order");
  });
}

TEST_CASE("what ranks send is the unpadded bound of the way it travels") {
  // Owned: 0, 3000, 500, 40 floats.
  const std::vector<mfsdp::piece> pieces{{1, 0, 0, 3000}, {2, 3000, 0, 500}, {3, 3500, 0, 40}};
  const std::vector<mfsdp::index_t> owned{0, 3000, 500, 40};
  const mfsdp::index_t all = 3540;
  const auto sent = [&](travel gathers, travel sums, bool reduce) {
    std::vector<std::int64_t> elements(4);
    message_world world(4, {.gathers = gathers, .sums = sums, .parcel_bytes = 1024});
    world.run([&](auto c) {
      std::vector<float> full(3540, 1.0f);
      std::vector<float> shard(3000, 1.0f);
      auto request =
          reduce ? c.start_reduce_scatter(std::span<const float>(full), std::span<float>(shard),
                                          pieces, mfsdp::reduce_into::write, "r")
                 : c.start_all_gather(std::span<const float>(shard), std::span<float>(full), pieces,
                                      "g");
      request.wait(in(10000));
      request.drain(in(10000));
      auto last = gather(c, 1, "so that all has been passed on");
      const auto before = c.bytes_sent() - 3 * 4;  // its own bytes if direct, else counted below
      last.request.wait(in(10000));
      last.request.drain(in(10000));
      elements[static_cast<std::size_t>(c.rank())] =
          (gathers == travel::direct ? before : c.bytes_sent() - 3 * 4) / 4;
    });
    return elements;
  };
  for (std::size_t r = 0; r < 4; ++r) {
    CAPTURE(r);
    const std::size_t next = (r + 1) % 4;
    CHECK(sent(travel::direct, travel::direct, false)[r] == 3 * owned[r]);
    CHECK(sent(travel::ring, travel::ring, false)[r] == all - owned[next]);
    CHECK(sent(travel::direct, travel::direct, true)[r] == all - owned[r]);
    CHECK(sent(travel::ring, travel::ring, true)[r] == all - owned[r]);
    CHECK(sent(travel::ring, travel::chain, true)[r] == (r == 3 ? all - owned[3] : all));
  }
}

TEST_CASE("transfers move on while their ranks do something else") {
  for (const travel how : {travel::direct, travel::ring}) {
    message_world world(3, {.gathers = how, .parcel_bytes = 4096});
    world.run([&](auto c) {
      auto all = gather(c, 50000, "moving");
      // Asking for a number moves nothing.
      const auto until = in(20000);
      while (c.bytes_sent() < 2 * 50000 * 4 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (c.bytes_sent() != 2 * 50000 * 4) throw std::runtime_error("it has not moved");
      all.request.wait(in(20000));
      all.request.drain(in(20000));
    });
  }
}

TEST_CASE("a rank that throws is named to the others, with its reason") {
  for (const bool waiting : {false, true}) {
    message_world world(3, impatient());
    const auto thrown = world.outcomes([&](auto c) {
      auto first = gather(c, 5000, "block.3");
      if (c.rank() == 1 && !waiting) throw std::runtime_error("no more disk");
      first.request.wait(in(20000));
      if (c.rank() == 1) throw std::runtime_error("no more disk");
      auto second = gather(c, 5000, "block.4");
      second.request.wait(in(20000));
    });
    CHECK(what_of(thrown[1]) == "no more disk");
    for (const std::size_t rank : {0u, 2u}) {
      CHECK(is_rank_failure(thrown[rank]));
      CHECK(what_of(thrown[rank]) == "rank 1 failed first: no more disk");
    }
  }
}

TEST_CASE(
    "a rank that dies is named by its unit, operation and number before the deadline is long "
    "over") {
  for (const travel how : {travel::direct, travel::ring}) {
    auto options = impatient();
    options.gathers = how;
    message_world world(4, options);
    const auto begin = std::chrono::steady_clock::now();
    const auto thrown = world.outcomes([&](auto c) {
      auto first = gather(c, 5000, "block.3");
      first.request.wait(in(5000));
      first.request.drain(in(5000));
      if (c.rank() == 2) return world.kill(2);
      auto second = gather(c, 5000, "block.4");
      second.request.wait(in(500));
      second.request.drain(in(500));
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    for (const std::size_t rank : {0u, 1u, 3u}) {
      const std::string what = what_of(thrown[rank]);
      INFO(what);
      CHECK(contains(what, "all-gather 'block.4'"));
      CHECK(contains(what, "waiting for rank 2, which does not answer"));
    }
  }
}

TEST_CASE("a rank that is late is told from one that is dead") {
  message_world world(3, impatient());
  const auto thrown = world.outcomes([&](auto c) {
    if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    auto first = gather(c, 5000, "block.0");
    first.request.wait(in(300));
  });
  const std::string what = what_of(thrown[0]);
  INFO(what);
  CHECK(contains(what, "waiting for rank 2, which has not come to it"));
}

TEST_CASE("a rank that has returned is named to those who wait for it") {
  message_world world(3, {.timeout = std::chrono::seconds(30)});
  const auto thrown = world.outcomes([&](auto c) {
    if (c.rank() == 1) return;
    auto first = gather(c, 5000, "block.0");
    first.request.wait(in(20000));
  });
  const std::string what = what_of(thrown[0]) + what_of(thrown[2]);
  INFO(what);
  CHECK(contains(what, "waits for rank 1, which has returned"));
  CHECK(thrown[1] != nullptr);
}

TEST_CASE("ranks that start different operations learn it at once") {
  message_world world(3, impatient());
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = world.outcomes([&](auto c) {
    auto first = gather(c, 5000, c.rank() == 1 ? "block.1" : "block.0");
    first.request.wait(in(60000));
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (const auto& t : thrown) {
    const std::string what = what_of(t);
    INFO(what);
    CHECK(contains(what, "differs between ranks"));
    CHECK(contains(what, "'block.1'"));
    CHECK(contains(what, "'block.0'"));
  }
}

TEST_CASE("ranks that start operations of other sizes learn it at once") {
  for (const int other : {1, 2}) {
    message_world world(4, impatient());
    const auto begin = std::chrono::steady_clock::now();
    const auto thrown = world.outcomes([&](auto c) {
      auto first = gather(c, c.rank() == other ? 90000 : 3000, "block.0");
      first.request.wait(in(60000));
      first.request.drain(in(60000));
      auto second = gather(c, 10, "block.1");
      second.request.wait(in(60000));
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    for (const auto& t : thrown) {
      INFO(what_of(t));
      CHECK(contains(what_of(t), "all ranks must make the same calls in the same order"));
    }
  }
}

TEST_CASE("ranks with other message_options learn it at once") {
  auto office = std::make_shared<mfsdp_test::post_office>();
  std::array<std::string, 2> what;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        mfsdp::message_collective<mfsdp_test::local_wire>(
            mfsdp_test::local_wire(*office, rank, 2),
            {.timeout = std::chrono::seconds(5), .parcel_bytes = rank == 0 ? 4096 : 8192})
            .run([](auto c) {
              auto all = gather(c, 10, "block.0");
              all.request.wait(in(60000));
            });
      } catch (const mfsdp::collective_error& e) {
        what[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& w : what) {
    INFO(w);
    CHECK(contains(w, "uses other message_options"));
  }
}

TEST_CASE("an exception that the trainer catches has given up its operations all the same") {
  message_world world(3, impatient());
  const auto thrown = world.outcomes([&](auto c) {
    try {
      auto first = gather(c, 50000, "block.3");
      if (c.rank() == 1) throw std::invalid_argument("a bad batch");
      first.request.wait(in(20000));
      first.request.drain(in(20000));
    } catch (const std::invalid_argument&) {
    }
    auto second = gather(c, 10, "block.4");
    second.request.wait(in(20000));
  });
  for (const auto& t : thrown) {
    INFO(what_of(t));
    CHECK(contains(what_of(t), "all-gather 'block.3'"));
    CHECK(contains(what_of(t), "rank 1 gave it up"));
  }
}

TEST_CASE("the thread moves on what is under way as soon as a wait is over") {
  message_world world(2, {.gathers = travel::direct, .parcel_bytes = 4096});
  world.run([&](auto c) {
    auto ahead = gather(c, 500000, "ahead");
    auto now = gather(c, 10, "now");
    now.request.wait(in(20000));
    const auto until = in(20000);
    while (c.bytes_sent() < 500010 * 4 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (c.bytes_sent() != 500010 * 4) throw std::runtime_error("it has not moved");
    ahead.request.wait(in(20000));
  });
}

TEST_CASE("what a rank has sent before it returned still arrives") {
  message_world world(3, {.timeout = std::chrono::seconds(20)});
  world.run([](auto c) {
    const std::vector<mfsdp::piece> pieces{{0, 0, 0, 100}, {0, 200, 100, 100}};
    std::vector<float> shard(200, 1.0f);
    std::vector<float> full(300);
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    auto request =
        c.start_all_gather(std::span<const float>(shard), std::span<float>(full), pieces, "norm");
    request.wait(in(20000));
    request.drain(in(20000));
    if (full[250] != 1.0f) throw std::runtime_error("it has not arrived");
  });
}

TEST_CASE("a rank may work alone for longer than the timeout") {
  message_world world(3, {.timeout = std::chrono::milliseconds(300)});
  world.run([](auto c) {
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  });
}

TEST_CASE("a rank that dies after its last operation is missed by those who return") {
  message_world world(3, {.timeout = std::chrono::milliseconds(300)});
  const auto thrown = world.outcomes([&](auto c) {
    if (c.rank() == 2) world.kill(2);
  });
  for (const std::size_t rank : {0u, 1u}) {
    INFO(what_of(thrown[rank]));
    CHECK(contains(what_of(thrown[rank]), "waits for rank 2, which does not answer"));
  }
}

TEST_CASE("a split that a rank does not come to ends with an error") {
  for (const bool throws : {false, true}) {
    message_world world(4, impatient());
    const auto thrown = world.outcomes([&](auto c) {
      auto half = c.split(c.rank() / 2);
      if (c.rank() == 3) {
        if (throws) throw std::runtime_error("no more disk");
        return world.kill(3);
      }
      auto quarter = half.split(0);
      auto all = gather(c, 10, "all");
      all.request.wait(in(500));
    });
    for (const std::size_t rank : {0u, 1u, 2u}) {
      INFO(what_of(thrown[rank]));
      CHECK(contains(what_of(thrown[rank]), throws ? "no more disk" : "rank 3"));
    }
  }
}

TEST_CASE("ranks that have split differently often still tell their groups apart") {
  message_world world(4, impatient());
  const auto thrown = world.outcomes([&](auto c) {
    auto half = c.split(c.rank() / 2);
    if (c.rank() < 2) {
      auto again = half.split(0);
    }
    auto all = c.split(0);
    if (c.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    auto late = gather(all, 10, "late");
    late.request.wait(in(500));
  });
  INFO(what_of(thrown[0]));
  CHECK(contains(what_of(thrown[0]), "waiting for rank 3, which has not come to it"));
}

TEST_CASE("a request that is given up fails on the other ranks, and frees its memory") {
  message_world world(3, impatient());
  const auto thrown = world.outcomes([&](auto c) {
    if (c.rank() == 0) {
      {
        auto given_up = gather(c, 500000, "block.7");
      }
      auto more = gather(c, 1, "after");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      auto first = gather(c, 500000, "block.7");
      first.request.wait(in(20000));
      auto more = gather(c, 1, "after");
      more.request.wait(in(20000));
    }
  });
  CHECK(contains(what_of(thrown[0]), "all-gather 'block.7'"));
  CHECK(contains(what_of(thrown[0]), "gave it up"));
  for (const std::size_t rank : {1u, 2u}) {
    INFO(what_of(thrown[rank]));
    CHECK(contains(what_of(thrown[rank]), "rank 0 failed first: all-gather 'block.7'"));
  }
}

TEST_CASE("a rank whose function ends long before the others is no failure") {
  message_world world(3, {.timeout = std::chrono::milliseconds(20000)});
  world.run([](auto c) {
    auto first = gather(c, 100, "block.0");
    first.request.wait(in(20000));
    first.request.drain(in(20000));
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  });
}

TEST_CASE("groups of a world work at the same time, and fail with it") {
  message_world world(6, impatient());
  world.run([](auto c) {
    auto shard = c.split(c.rank() / 3);
    auto replicate = c.split(c.rank() % 3);
    if (shard.size() != 3 || replicate.size() != 2 || shard.rank() != c.rank() % 3 ||
        replicate.rank() != c.rank() / 3) {
      throw std::runtime_error("wrong groups");
    }
    for (int i = 0; i < 20; ++i) {
      auto a = gather(shard, 3000, "shard");
      auto b = gather(replicate, 2000, "replicate");
      auto d = gather(c, 100, "all");
      b.request.wait(in(20000));
      d.request.wait(in(20000));
      a.request.wait(in(20000));
    }
  });
  const auto thrown = world.outcomes([](auto c) {
    auto shard = c.split(c.rank() / 3);
    if (c.rank() == 4) throw std::runtime_error("no more disk");
    auto a = gather(shard, 3000, "shard");
    a.request.wait(in(20000));
    auto b = gather(c, 3000, "all");
    b.request.wait(in(20000));
  });
  for (const std::size_t rank : {0u, 3u, 5u}) {
    CHECK(what_of(thrown[rank]) == "rank 4 failed first: no more disk");
  }
}

TEST_CASE("a group may go as soon as its operations are waited for") {
  message_world world(4, {.gathers = travel::ring, .sums = travel::chain, .parcel_bytes = 512});
  world.run([](auto c) {
    for (int i = 0; i < 50; ++i) {
      auto part = c.split(c.rank() % 2 + i % 3);
      std::vector<float> full(3000, 1.0f);
      std::vector<float> shard(3000);
      const std::vector<mfsdp::piece> pieces{{0, 0, 0, 3000}};
      auto request =
          part.start_reduce_scatter(std::span<const float>(full), std::span<float>(shard), pieces,
                                    mfsdp::reduce_into::write, "sum");
      request.wait(in(20000));
      request.drain(in(20000));
    }
  });
}

TEST_CASE("message_options that make no sense") {
  for (const mfsdp::message_options& options :
       {mfsdp::message_options{.parcel_bytes = 63}, mfsdp::message_options{.parcels_ahead = 0},
        mfsdp::message_options{.timeout = std::chrono::milliseconds(0)}}) {
    mfsdp_test::message_world world(2, options);
    CHECK_THROWS_AS(world.run([](auto) {}), mfsdp::spec_error);
  }
}

TEST_CASE("errors of a group name ranks of the world") {
  message_world world(4, impatient());
  const auto thrown = world.outcomes([&](auto c) {
    auto half = c.split(c.rank() / 2);
    if (c.rank() == 3) return world.kill(3);
    auto a = gather(half, 3000, "half");
    a.request.wait(in(300));
    auto b = gather(c, 3000, "all");
    b.request.wait(in(20000));
  });
  INFO(what_of(thrown[2]));
  CHECK(contains(what_of(thrown[2]), "'half'"));
  CHECK(contains(what_of(thrown[2]), "rank 2 reached its deadline waiting for rank 3"));
}

}  // namespace messages_test
