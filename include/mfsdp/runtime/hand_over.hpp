// What a site that joins takes over from one that trains.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/widen.hpp"

namespace mfsdp::inline MFSDP_ABI {

// One hand-over on an elastic site axis. Every site makes the same calls, with lists of equal
// sizes; the giver's values reach those who have joined, and the other sites are there for the
// gathers only. Does nothing if nobody has joined. Errors: collective_error on a site that joins,
// if the giver has vanished.
template <class Context>
class hand_over {
 public:
  // `buffers`: of equal size, at least two elements.
  hand_over(Context& context, const admission& now, std::array<std::span<float>, 2> buffers)
      : context_(context),
        giver_(now.giver),
        empty_(now.joined.empty()),
        gives_(context.sites.rank() == now.giver),
        takes_(std::ranges::find(now.joined, context.sites.rank()) != now.joined.end()),
        buffers_(buffers) {}

  void give(std::span<std::int64_t* const> counts) const {
    if (empty_) return;
    std::vector<std::uint64_t> message{1};  // zero if the giver is not there
    for (const std::int64_t* count : counts) message.push_back(static_cast<std::uint64_t>(*count));
    const std::vector<std::uint64_t> own = message;
    gather(std::span(own), std::span(message), std::ssize(message));
    if (!takes_) return;
    require_giver(message[0] == 1);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      *counts[i] = static_cast<std::int64_t>(message[i + 1]);
    }
  }

  // Values of float, or of a type that converts from float without loss what it has converted to
  // it. Cost: what all spans hold, in messages of the buffers' size.
  template <class T>
  void give(const std::vector<std::span<T>>& values) const {
    if (empty_) return;
    const index_t room = std::ssize(buffers_[0]) - 1;  // a 1 follows if the giver is there
    for (position next{}; next.span < values.size();) {
      const position first = next;
      const index_t elements = for_each_part(values, next, room, [&](auto part, index_t at) {
        if (gives_) detail::load(context_.backend, part, slice(buffers_[0], at, std::ssize(part)));
      });
      context_.backend.fill(slice(buffers_[0], elements, 1), 1.0f);
      gather(std::span<const float>(buffers_[0]), buffers_[1], elements + 1);
      if (!takes_) continue;
      float there = 0;
      context_.backend.copy(std::span<const float>(slice(buffers_[1], elements, 1)),
                            std::span(&there, 1));
      require_giver(there == 1);
      next = first;
      for_each_part(values, next, room, [&](auto part, index_t at) {
        detail::store_nearest(context_.backend,
                              std::span<const float>(slice(buffers_[1], at, std::ssize(part))),
                              part);
      });
    }
  }

 private:
  struct position {
    std::size_t span = 0;
    index_t element = 0;  // in that
  };

  // Calls f(part, at) for the parts of values from `next` on that fill one message, `at` being
  // where in the message; moves `next` behind them. Returns how many elements they have.
  template <class T, class F>
  static index_t for_each_part(const std::vector<std::span<T>>& values, position& next,
                               index_t room, const F& f) {
    index_t elements = 0;
    while (next.span < values.size() && elements < room) {
      const std::span<T> whole = values[next.span];
      const index_t count = std::min(std::ssize(whole) - next.element, room - elements);
      if (count > 0) f(slice(whole, next.element, count), elements);
      elements += count;
      next.element += count;
      if (next.element == std::ssize(whole)) next = {next.span + 1, 0};
    }
    return elements;
  }

  template <class T>
  void gather(std::span<const T> from, std::span<T> to, index_t elements) const {
    const std::array<piece, 1> all{{{giver_, 0, 0, elements}}};
    auto request =
        context_.sites.start_all_gather(from, to, std::span<const piece>(all), "hand-over");
    context_.book(phase::sync);
    request.wait(context_.until());
    request.drain(context_.until());
  }

  void require_giver(bool there) const {
    if (there) return;
    throw collective_error(fmt::format(
        "site {} vanished while it handed over to site {}, which may try again on another seat",
        giver_, context_.sites.rank()));
  }

  Context& context_;
  const int giver_;
  const bool empty_;
  const bool gives_;  // whether this site is the giver
  const bool takes_;  // or has joined
  const std::array<std::span<float>, 2> buffers_;
};

}  // namespace mfsdp::inline MFSDP_ABI
