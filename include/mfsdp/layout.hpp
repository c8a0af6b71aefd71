// Layout: who holds which elements. Plain data that placements produce and collectives consume.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What a placement places: a matrix, one row group of a matrix, or a whole elementwise tensor.
struct placement_item {
  std::string name;          // of the tensor, for messages
  std::size_t tensor = 0;    // index in the spec
  std::size_t unit = 0;      // unit that declares it
  index offset = 0;          // first element, counted from the start of the tensor
  matrix_shape shape{};      // rows and columns of the item
  bool divisible = false;    // may be cut at multiples of block_elements; otherwise one piece
  index update_flops = 0;    // of one optimizer step on the whole item
  index resident_bytes = 0;  // parameter, gradient and optimizer state of the whole item

  [[nodiscard]] index elements() const { return shape.elements(); }
};

// Part of one item on one rank. Offsets count from the start of the item.
struct segment {
  int rank = 0;
  index offset = 0;
  index count = 0;
  friend bool operator==(const segment&, const segment&) = default;
};

// Part of one unit on one rank, as collectives see it.
struct piece {
  int rank = 0;
  index full = 0;   // offset in the unit buffer, equal on every rank
  index local = 0;  // offset in that rank's shard of the unit
  index count = 0;
  friend bool operator==(const piece&, const piece&) = default;
};

[[nodiscard]] inline index elements_of(std::span<const piece> pieces, int rank) {
  index sum = 0;
  for (const piece& p : pieces) sum += p.rank == rank ? p.count : 0;
  return sum;
}

[[nodiscard]] constexpr index round_up(index value, index multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace mfsdp::inline MFSDP_ABI
