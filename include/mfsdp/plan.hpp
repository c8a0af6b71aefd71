// plan: where every element lives, for a spec, a number of ranks, a placement and its optimizers.
// make_plan (planner.hpp) computes it as a pure function of these on every rank; ranks compare its
// hash (plan_text.hpp) before the first collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/layout.hpp"
#include "mfsdp/precision.hpp"
#include "mfsdp/spec.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Where a tensor stands in the buffer of its group.
struct tensor_slot {
  std::size_t group = 0;
  index_t offset = 0;           // of its parameters
  index_t gradient_offset = 0;  // of its gradient, unless frozen
  int optimizer = -1;           // index into plan::optimizers; -1: frozen
};

// The whole buffer of a group, the shard of it that each rank holds, and what connects them.
struct buffer_layout {
  index_t full_elements = 0;            // alignment gaps included
  std::vector<index_t> shard_elements;  // of each rank, alignment gaps included
  std::vector<piece> pieces;            // what a gather or a reduction moves
};

// Tensors that are gathered and reduced together: those of one unit, or one tied tensor, which is
// held from its first use in a step to the step itself because several units use it.
struct transfer_group {
  std::string name;                  // of the unit, or of the tied tensor
  std::vector<std::size_t> tensors;  // in order of registration
  bool held = false;
  bool resident = false;           // every rank holds all of it: nothing to gather
  buffer_layout parameters{};      // nothing is moved when resident
  buffer_layout gradients{};       // trainable tensors only
  std::vector<std::size_t> units;  // that use the group, in forward order
};

// One contiguous part of an item in the shard of one rank.
struct local_segment {
  std::size_t item = 0;
  int rank = 0;
  index_t offset = 0;  // from the start of the item
  index_t count = 0;
  index_t local = 0;     // offset in that rank's shard of the group's parameters
  index_t gradient = 0;  // offset in its shard of the group's gradients, unless frozen
};

struct plan {
  model_spec spec;
  int ranks = 1;
  std::string placement;
  bool replicated = false;
  storage_bytes bytes;
  std::vector<std::string> optimizers;
  std::vector<bool> gathers;  // of each optimizer: every rank repeats the whole update

  std::vector<placement_item> items;           // in spec order
  std::vector<std::vector<segment>> segments;  // of each item, by offset; none if replicated
  std::vector<tensor_slot> tensors;            // parallel to spec.tensors()
  std::vector<transfer_group> groups;
  std::vector<std::vector<std::size_t>> unit_groups;  // groups that each unit needs
  std::vector<local_segment> local_segments;          // ordered by item, then offset, then rank
};

}  // namespace mfsdp::inline MFSDP_ABI
