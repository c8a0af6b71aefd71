// Conformance of a Collective, for this library's and for yours: call collective_conformance(world)
// in a doctest case. A world has size() and run(body), which calls body(collective) on every rank,
// be it a thread or a process; no check looks into another rank's memory. An engine that offers
// less calls the parts that it serves. Operands are in vectors, or where memory(collective) of the
// world says: it has allocate<T>(n) and copy(from, to), as a Backend does, and returns from a copy
// to the host when that is done.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

inline mfsdp::deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

// Element i of the input of a rank in a round. Floats differ so much in size that their sum
// depends on the order of the ranks.
template <class T>
T element(int rank, mfsdp::index_t i, int round = 0) {
  const mfsdp::index_t seed = 1000003 * rank + 7919 * round + i;
  if constexpr (std::integral<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15u);
  } else {
    const double wave = std::sin(0.7 + 1.3 * static_cast<double>(seed));
    const double value = std::ldexp(wave, static_cast<int>(seed * 31 % 23));
    if constexpr (std::floating_point<T>) {
      return static_cast<T>(value);
    } else {
      return T(static_cast<float>(value / 1024));  // sums stay in the range of 16 bits
    }
  }
}

template <class T>
std::vector<T> elements(mfsdp::index_t count, int rank, int round = 0) {
  std::vector<T> all;
  for (mfsdp::index_t i = 0; i < count; ++i) all.push_back(element<T>(rank, i, round));
  return all;
}

// Pieces with gaps between them, in both buffers.
struct piece_map {
  std::string name;
  mfsdp::index_t full = 0;   // elements of the unit buffer
  mfsdp::index_t local = 0;  // elements of the largest shard
  std::vector<mfsdp::piece> pieces{};

  void add(int rank, mfsdp::index_t count) {
    mfsdp::index_t end = 3;
    for (const mfsdp::piece& p : pieces) {
      if (p.rank == rank) end = std::max(end, p.local + p.count + 2);
    }
    pieces.push_back({rank, full + 1, end, count});
    full += count + 2;
    local = std::max(local, end + count + 1);
  }
};

inline std::vector<piece_map> piece_maps(int ranks) {
  constexpr mfsdp::index_t block = mfsdp::block_elements;
  std::vector<piece_map> maps;
  maps.push_back({"no pieces", 5, 5});

  piece_map even{"even"};
  for (int rank = 0; rank < ranks; ++rank) even.add(rank, 100);
  maps.push_back(even);

  piece_map one_element{"one element"};
  one_element.add(ranks / 2, 1);
  maps.push_back(one_element);

  piece_map one_owner{"one owner"};
  for (const mfsdp::index_t count : {block - 1, block, block + 1, 3 * block}) {
    one_owner.add(ranks - 1, count);
  }
  maps.push_back(one_owner);

  piece_map unequal{"very unequal, every third rank empty"};
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank % 3 != 1) unequal.add(rank, 1 + 2 * block * rank * rank);
  }
  maps.push_back(unequal);

  piece_map shuffled{"many pieces, shuffled"};
  for (int i = 0; i < 40; ++i) shuffled.add(i * i * 7 % ranks, 1 + i * 13 % 50);
  std::ranges::shuffle(shuffled.pieces, std::mt19937(1));
  maps.push_back(shuffled);
  return maps;
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Runs body(collective, complain) on every rank; each complaint is a failed check.
template <class World, class Body>
void on_every_rank(World& world, const Body& body) {
  std::vector<std::string> complaints(static_cast<std::size_t>(world.size()));
  world.run([&](auto collective) {
    std::string& mine = complaints[static_cast<std::size_t>(collective.rank())];
    body(collective, [&mine](const std::string& what) { mine += what + "; "; });
  });
  for (std::size_t rank = 0; rank < complaints.size(); ++rank) {
    INFO("rank ", rank, " of ", world.size(), ": ", complaints[rank]);
    CHECK(complaints[rank].empty());
  }
}

// Memory of the host, for worlds that say nothing else.
struct host_vectors {
  template <class T>
  struct buffer {
    std::vector<T> values;
    std::span<T> span() { return values; }
  };
  template <class T>
  [[nodiscard]] buffer<T> allocate(mfsdp::index_t count) const {
    return {std::vector<T>(static_cast<std::size_t>(count))};
  }
  template <class T>
  void copy(std::span<const T> from, std::span<T> to) const {
    std::ranges::copy(from, to.begin());
  }
};

template <class World, class C>
auto memory_of(World& world, const C& collective) {
  if constexpr (requires { world.memory(collective); }) {
    return world.memory(collective);
  } else {
    return host_vectors{};
  }
}

// One operation with its buffers and what they must hold afterwards. Whole buffers are compared, so
// that a byte written outside the pieces shows.
template <class From, class To = From, class Memory = host_vectors>
struct exchange {
  template <class T>
  using buffer = decltype(std::declval<Memory&>().template allocate<T>(mfsdp::index_t{1}));

  const piece_map* map;
  Memory memory;
  std::vector<From> untouched;  // the input
  std::vector<To> expected;     // the output; begins as what it starts with
  buffer<From> input;
  buffer<To> output;

  exchange(const piece_map& of, const Memory& in, std::vector<From> given, std::vector<To> start)
      : map(&of),
        memory(in),
        untouched(std::move(given)),
        expected(std::move(start)),
        input(placed(untouched)),
        output(placed(expected)) {}

  template <class T>
  [[nodiscard]] buffer<T> placed(const std::vector<T>& values) {
    auto place = memory.template allocate<T>(std::ssize(values));
    memory.copy(std::span<const T>(values), place.span());
    return place;
  }
  void write_input(From value) {
    std::ranges::fill(untouched, value);
    memory.copy(std::span<const From>(untouched), input.span());
  }

  [[nodiscard]] std::string verdict(std::string_view operation) {
    std::string what;
    std::vector<From> given(untouched.size());
    std::vector<To> got(expected.size());
    memory.copy(std::span<const From>(input.span()), std::span(given));
    memory.copy(std::span<const To>(output.span()), std::span(got));
    if (!equal_bits(given, untouched)) what += "has changed its input";
    if (!equal_bits(got, expected)) what += " has a wrong output";
    return what.empty() ? what : std::string(operation) + " over " + map->name + " " + what;
  }
};

template <class T, class C, class Memory = host_vectors>
exchange<T, T, Memory> all_gather_of(const C& collective, const piece_map& map, int round = 0,
                                     const Memory& memory = {}) {
  exchange<T, T, Memory> e(map, memory, elements<T>(map.local, collective.rank(), round),
                           elements<T>(map.full, collective.rank(), round + 1));
  for (const mfsdp::piece& p : map.pieces) {
    for (mfsdp::index_t i = 0; i < p.count; ++i) {
      e.expected[p.full + i] = element<T>(p.rank, p.local + i, round);
    }
  }
  return e;
}

template <class From, class To = From, class C, class Memory = host_vectors>
exchange<From, To, Memory> reduction_of(const C& collective, const piece_map& map,
                                        mfsdp::reduce_into into, bool everywhere, int round = 0,
                                        const Memory& memory = {}) {
  exchange<From, To, Memory> e(
      map, memory, elements<From>(map.full, collective.rank(), round),
      elements<To>(everywhere ? map.full : map.local, collective.rank(), round + 1));
  for (const mfsdp::piece& p : map.pieces) {
    if (!everywhere && p.rank != collective.rank()) continue;
    for (mfsdp::index_t i = 0; i < p.count; ++i) {
      To sum = static_cast<To>(element<From>(0, p.full + i, round));
      for (int rank = 1; rank < collective.size(); ++rank) {
        sum = sum + static_cast<To>(element<From>(rank, p.full + i, round));
      }
      To& out = e.expected[p.local + i];
      out = into == mfsdp::reduce_into::add ? out + sum : sum;
    }
  }
  return e;
}

// All-reduce ignores the ranks of pieces, so their local offsets must differ.
inline piece_map for_all_reduce(piece_map map) {
  for (mfsdp::piece& p : map.pieces) p.local = map.full - p.full - p.count;
  return map;
}

template <class C, class T, class Memory>
auto start_all_gather(C& collective, exchange<T, T, Memory>& e, std::string_view label) {
  return collective.start_all_gather(std::span<const T>(e.input.span()), e.output.span(),
                                     std::span<const mfsdp::piece>(e.map->pieces), label);
}
template <class C, class From, class To, class Memory>
auto start_reduce_scatter(C& collective, exchange<From, To, Memory>& e, mfsdp::reduce_into into,
                          std::string_view label) {
  return collective.start_reduce_scatter(std::span<const From>(e.input.span()), e.output.span(),
                                         std::span<const mfsdp::piece>(e.map->pieces), into, label);
}
template <class C, class From, class To, class Memory>
auto start_all_reduce(C& collective, exchange<From, To, Memory>& e, mfsdp::reduce_into into,
                      std::string_view label) {
  return collective.start_all_reduce(std::span<const From>(e.input.span()), e.output.span(),
                                     std::span<const mfsdp::piece>(e.map->pieces), into, label);
}

// Waits and drains; says what is wrong.
template <class Complain>
void finish(auto request, auto& exchange, std::string_view operation, const Complain& complain) {
  request.wait(soon());
  request.drain(soon());
  if (!request.test()) complain("test() is false after wait()");
  if (const std::string what = exchange.verdict(operation); !what.empty()) complain(what);
}

template <class T, class World>
void all_gather_conformance(World& world) {
  const auto maps = piece_maps(world.size());
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    static_assert(mfsdp::AllGather<std::remove_cvref_t<decltype(collective)>, T>);
    for (const piece_map& map : maps) {
      auto e = all_gather_of<T>(collective, map, 0, memory);
      finish(start_all_gather(collective, e, "gather"), e, "all-gather", complain);
    }
  });
}

template <class From, class To = From, class World>
void reduce_scatter_conformance(World& world) {
  const auto maps = piece_maps(world.size());
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    static_assert(mfsdp::ReduceScatter<std::remove_cvref_t<decltype(collective)>, From, To>);
    for (const piece_map& map : maps) {
      for (const auto into : {mfsdp::reduce_into::write, mfsdp::reduce_into::add}) {
        auto e = reduction_of<From, To>(collective, map, into, false, 0, memory);
        finish(start_reduce_scatter(collective, e, into, "reduce"), e, "reduce-scatter", complain);
      }
    }
  });
}

template <class From, class To = From, class World>
void all_reduce_conformance(World& world) {
  const auto maps = piece_maps(world.size());
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    static_assert(mfsdp::AllReduce<std::remove_cvref_t<decltype(collective)>, From, To>);
    for (const piece_map& original : maps) {
      const piece_map map = for_all_reduce(original);
      for (const auto into : {mfsdp::reduce_into::write, mfsdp::reduce_into::add}) {
        auto e = reduction_of<From, To>(collective, map, into, true, 0, memory);
        finish(start_all_reduce(collective, e, into, "sum"), e, "all-reduce", complain);
      }
    }
  });
}

// Several operations of several kinds at once, waited for in an order that differs between ranks,
// started through copies of one collective in turn.
template <class World>
void outstanding_conformance(World& world) {
  using mfsdp::reduce_into;
  const auto maps = piece_maps(world.size());
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    auto copy = collective;
    for (const piece_map& map : maps) {
      const piece_map everywhere = for_all_reduce(map);
      auto gather = all_gather_of<float>(collective, map, 0, memory);
      auto scatter = reduction_of<float>(collective, map, reduce_into::add, false, 1, memory);
      auto sum = reduction_of<double>(collective, everywhere, reduce_into::write, true, 2, memory);
      auto words = all_gather_of<std::uint64_t>(collective, map, 3, memory);
      auto first = start_all_gather(collective, gather, "first");
      auto second = start_reduce_scatter(copy, scatter, reduce_into::add, "second");
      auto third = start_all_reduce(collective, sum, reduce_into::write, "third");
      auto fourth = start_all_gather(copy, words, "fourth");
      if (collective.rank() % 2 == 0) std::swap(first, fourth);
      for (auto* request : {&third, &first, &fourth, &second}) request->wait(soon());
      for (auto* request : {&first, &second, &third, &fourth}) request->drain(soon());
      for (const std::string& what : {gather.verdict("all-gather"), sum.verdict("all-reduce"),
                                      scatter.verdict("reduce-scatter"), words.verdict("words")}) {
        if (!what.empty()) complain("interleaved " + what);
      }
    }
  });
}

// Hundreds of operations outstanding, then as many one after the other.
template <class World>
void many_conformance(World& world) {
  constexpr int count = 400;
  piece_map map{"one element per rank"};
  for (int rank = 0; rank < world.size(); ++rank) map.add(rank, 1);
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    std::vector<decltype(all_gather_of<float>(collective, map, 0, memory))> exchanges;
    for (int i = 0; i < count; ++i) {
      exchanges.push_back(all_gather_of<float>(collective, map, i, memory));
    }
    std::vector<typename std::remove_cvref_t<decltype(collective)>::request> requests;
    for (auto& e : exchanges) requests.push_back(start_all_gather(collective, e, "outstanding"));
    for (int i = 0; i < count; ++i) {
      finish(std::move(requests[i]), exchanges[i], "one of many all-gathers", complain);
    }
    for (int i = 0; i < count; ++i) {
      auto e = all_gather_of<float>(collective, map, i, memory);
      finish(start_all_gather(collective, e, "in a row"), e, "one all-gather in a row", complain);
    }
  });
}

// The input may be written after drain() and freed after the request, even while others are late.
template <class World>
void drain_conformance(World& world) {
  constexpr int rounds = 20;
  piece_map map{"even"};
  for (int rank = 0; rank < world.size(); ++rank) map.add(rank, 2000);
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    const auto be_late = [&](int round) {
      if (round % collective.size() == collective.rank()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    for (int round = 0; round < rounds; ++round) {
      auto e = all_gather_of<float>(collective, map, round, memory);
      auto request = start_all_gather(collective, e, "drained");
      be_late(round);
      request.wait(soon());
      request.drain(soon());
      e.write_input(-1.0f);
      be_late(round + 1);
      if (const std::string what = e.verdict("all-gather"); !what.empty()) complain(what);
    }
    for (int round = 0; round < rounds; ++round) {
      auto e = all_gather_of<float>(collective, map, round, memory);
      {
        auto input = e.placed(e.untouched);
        auto request = collective.start_all_gather(
            std::span<const float>(input.span()), e.output.span(),
            std::span<const mfsdp::piece>(map.pieces), "destroyed after wait");
        be_late(round);
        request.wait(soon());
      }
      if (const std::string what = e.verdict("all-gather"); !what.empty()) complain(what);
    }
  });
}

// Requests that are only tested complete, too; requests move; one that never started is complete.
template <class World>
void request_conformance(World& world) {
  const auto maps = piece_maps(world.size());
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    for (const piece_map& map : maps) {
      auto e = all_gather_of<double>(collective, map, 0, memory);
      typename std::remove_cvref_t<decltype(collective)>::request request;
      if (!request.test()) complain("a request without operation is not complete");
      request.wait(soon());
      request.drain(soon());
      request = start_all_gather(collective, e, "tested");
      auto moved = std::move(request);
      const mfsdp::deadline until = soon();
      while (!moved.test() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      finish(std::move(moved), e, "tested all-gather", complain);
    }
  });
}

// Models stored in a 16-bit type T: contributions of T, summed in T or in float.
template <class T, class World>
void narrow_conformance(World& world) {
  all_gather_conformance<T>(world);
  reduce_scatter_conformance<T>(world);
  reduce_scatter_conformance<T, float>(world);
  all_reduce_conformance<T, float>(world);
}

// Groups of a world, and operations of several of them at once, waited for in an order that differs
// between ranks. Every group has inputs of its own, so that a message gone astray shows.
template <class World>
void split_conformance(World& world) {
  using mfsdp::reduce_into;
  on_every_rank(world, [&](auto& collective, const auto& complain) {
    const auto memory = memory_of(world, collective);
    const int rank = collective.rank();
    const int size = collective.size();
    for (const int columns : {1, 2, 3, size}) {
      const int rows = (size + columns - 1) / columns;
      auto row = collective.split(rank / columns);
      auto column = collective.split(rank % columns);
      auto pair = row.split(row.rank() / 2);
      if (row.rank() != rank % columns) complain("has another rank in its row");
      if (row.size() != std::min(columns, size - rank / columns * columns)) {
        complain("is in a row of another size");
      }
      if (column.rank() != rank / columns) complain("has another rank in its column");
      if (column.size() != rows - (rank % columns >= size - (rows - 1) * columns ? 1 : 0)) {
        complain("is in a column of another size");
      }
      if (pair.rank() != row.rank() % 2) complain("has another rank in its pair");
      for (int i = 0; i < 3; ++i) {
        const auto of_row = piece_maps(row.size())[static_cast<std::size_t>(3 + i)];
        const auto of_column = for_all_reduce(piece_maps(column.size()).back());
        const auto of_pair = piece_maps(pair.size())[1];
        const auto of_world = piece_maps(size).back();
        auto gather = all_gather_of<float>(row, of_row, 100 + rank / columns, memory);
        auto sum = reduction_of<float>(column, of_column, reduce_into::write, true,
                                       200 + rank % columns, memory);
        auto scatter =
            reduction_of<double>(pair, of_pair, reduce_into::add, false,
                                 300 + rank / columns * columns + row.rank() / 2, memory);
        auto words = all_gather_of<std::uint64_t>(collective, of_world, i, memory);
        auto first = start_all_gather(row, gather, "in a row");
        auto second = start_all_reduce(column, sum, reduce_into::write, "in a column");
        auto third = start_reduce_scatter(pair, scatter, reduce_into::add, "in a pair");
        auto fourth = start_all_gather(collective, words, "in the world");
        std::array requests{&first, &second, &third, &fourth};
        if (rank % 2 == 1) std::ranges::reverse(requests);
        for (auto* request : requests) request->wait(soon());
        for (auto* request : {&first, &second, &third, &fourth}) request->drain(soon());
        for (const std::string& what :
             {gather.verdict("all-gather of a row"), sum.verdict("all-reduce of a column"),
              scatter.verdict("reduce-scatter of a pair"), words.verdict("all-gather of all")}) {
          if (!what.empty()) complain(what);
        }
      }
    }
    // The world goes on without its groups.
    const auto maps = piece_maps(size);
    auto e = all_gather_of<float>(collective, maps[1], 0, memory);
    finish(start_all_gather(collective, e, "after"), e, "all-gather after the groups", complain);
  });
}

template <class World>
void collective_conformance(World& world) {
  all_gather_conformance<float>(world);
  all_gather_conformance<double>(world);
  all_gather_conformance<std::uint64_t>(world);
  reduce_scatter_conformance<float>(world);
  reduce_scatter_conformance<double>(world);
  all_reduce_conformance<float>(world);
  all_reduce_conformance<double>(world);
  narrow_conformance<mfsdp::bfloat16>(world);
  narrow_conformance<mfsdp::float16>(world);
  outstanding_conformance(world);
  many_conformance(world);
  drain_conformance(world);
  request_conformance(world);
}

}  // namespace mfsdp_test
