// save: a checkpoint that loads at any number of ranks, with any placement and engine.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "mfsdp/checkpoint/chunks.hpp"
#include "mfsdp/checkpoint/writer.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// Calls f(part, values) for what this rank writes.
template <class Persistence, class F>
void for_each_written(const Persistence& held, const rank_share& share, F&& f) {
  held.for_each_held([&](const held_part& part, auto values) {
    if (!values.empty() && share.writes(part.array, part.first)) f(part, values);
  });
}

}  // namespace detail

// Writes parameters in the type that is updated, optimizer states and counts as a checkpoint of the
// step that the model has reached, into `root`, which need not be there. When it returns the
// checkpoint is on the disk and complete; whatever happens before that, earlier ones stay. Every
// rank of a site writes its share in parallel to a file system that all of them see, and calls it
// between two steps; each site has checkpoints of its own. Returns the checkpoint's folder.
// Errors: usage_error if a unit is in use or gradients are pending; checkpoint_error, the same on
// all ranks, naming the rank and the file with the cause and what to do; collective_error if a rank
// does not come in time, as anywhere. Cost: reads and writes what is stored once, in all; some
// numbers of each array are gathered. Earlier checkpoints that cannot be removed are no error, but
// a line on stderr.
template <class Model>
std::string save(Model& model, const std::string& root, const save_options& options = {}) {
  const auto held = model.persistence();
  held.require_step_boundary("save");
  detail::checkpoint_writer writer(detail::set_up_writer(model), root, options);
  const std::string fault = detail::fault_of([&] {
    writer.unlink_earlier();
    detail::rank_share& share = writer.share();
    share.open(writer.partial());
    detail::for_each_written(
        held, share, [&]<class T>(const held_part& part, std::span<const T> values) {
          detail::for_each_host_chunk(held, values, [&](index_t at, std::span<const T> host) {
            share.put(part.array, part.first + at, std::as_bytes(host), sizeof(T));
          });
        });
    share.finish();
  });
  return writer.commit(fault);
}

}  // namespace mfsdp::inline MFSDP_ABI
