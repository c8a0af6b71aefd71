// Layout: who holds which elements. Plain data that placements produce and collectives consume.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What a placement places: a matrix, be it a slice or a row group of a tensor, or a whole
// elementwise tensor.
struct placement_item {
  std::string name;            // of the tensor, for messages
  std::size_t tensor = 0;      // index in the spec
  std::size_t unit = 0;        // unit that declares it
  index_t offset = 0;          // first element, counted from the start of the tensor
  matrix_shape shape{};        // rows and columns of the item
  bool divisible = false;      // may be cut at multiples of block_elements; otherwise one piece
  index_t update_flops = 0;    // of one optimizer step on the whole item
  index_t resident_bytes = 0;  // parameter, gradient and optimizer state of the whole item

  [[nodiscard]] index_t elements() const { return shape.elements(); }
};

// Part of one item on one rank. Offsets count from the start of the item.
struct segment {
  int rank = 0;
  index_t offset = 0;
  index_t count = 0;
  friend bool operator==(const segment&, const segment&) = default;
};

// Part of one unit on one rank, as collectives see it.
struct piece {
  int rank = 0;
  index_t full = 0;   // offset in the unit buffer, equal on every rank
  index_t local = 0;  // offset in that rank's shard of the unit
  index_t count = 0;
  friend bool operator==(const piece&, const piece&) = default;
};

[[nodiscard]] inline index_t elements_of(std::span<const piece> pieces, int rank) {
  index_t sum = 0;
  for (const piece& p : pieces) sum += p.rank == rank ? p.count : 0;
  return sum;
}

[[nodiscard]] constexpr index_t round_up(index_t value, index_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace mfsdp::inline MFSDP_ABI
