// message_wire: what an engine must offer so that messages.hpp makes a Collective of it.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mfsdp/collective/routes.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A message that is complete.
struct message_completion {
  std::size_t position = 0;  // of its handle
  std::int64_t bytes = 0;    // that a receive has got
  bool failed = false;
};

// What carries the messages of one group of ranks. Calls come from one thread at a time. Messages
// between two ranks match by tag in the order in which they are started.
//   handle             a message under way, default-constructible
//   rank, size         of this group
//   largest_tag        tags are 0 up to this; 32767 at least
//   send, receive      start one; memory stays until it is complete. -1 receives from any rank
//   poll(handles, done)   appends what is complete, whose handles may be dropped
//   cancel(handle)     gives up a receive; true if nothing will be written to its memory
//   one_node           whether all ranks share memory
//   begin_split(color, ranks)   the group of these ranks, which have this color, as a `splitting`
//                      whose take() has a value once all ranks have called it; none of them blocks
//   free()             gives the group back; called on all ranks, unless one has failed
// Errors of any of them: collective_error.
template <class W>
concept MessageWire =
    std::movable<W> && std::default_initializable<typename W::handle> &&
    requires(W w, std::span<typename W::handle> handles, std::vector<message_completion>& done,
             const void* from, void* to, typename W::splitting splitting) {
      { w.rank() } -> std::same_as<int>;
      { w.size() } -> std::same_as<int>;
      { w.largest_tag() } -> std::same_as<std::int64_t>;
      { w.one_node() } -> std::same_as<bool>;
      { w.send(from, std::size_t{1}, 0, std::int64_t{0}) } -> std::same_as<typename W::handle>;
      { w.receive(to, std::size_t{1}, 0, std::int64_t{0}) } -> std::same_as<typename W::handle>;
      W::poll(handles, done);
      { W::cancel(handles[0]) } -> std::same_as<bool>;
      { w.begin_split(0, std::span<const int>()) } -> std::same_as<typename W::splitting>;
      { splitting.take() } -> std::same_as<std::optional<W>>;
      w.free();
    };

// Equal on all ranks, but for the timeout.
struct message_options {
  // How long a destructor may wait, and a rank that has returned before it asks whether the others
  // are still there. Operations bring deadlines of their own.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
  // How gathers and sums travel; if not given, direct between ranks that share memory, and
  // otherwise what `net` makes the quickest. `ring` gives up the order of ranks in sums: results
  // then depend on who owns what.
  std::optional<travel> gathers{};
  std::optional<travel> sums{};
  fabric net{};
  index_t parcel_bytes = 256 * 1024;  // 64 to 2^30
  int parcels_ahead = 4;  // on each route, sent or received before the first of them is complete
};

}  // namespace mfsdp::inline MFSDP_ABI
