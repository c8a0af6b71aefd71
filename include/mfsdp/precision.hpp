// precision: in which types a model's parameters, gradients and states are stored and moved, and
// the random bits of stochastic rounding.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>

#include "mfsdp/dtype.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Bytes of one element of each kind, for plans.
struct storage_bytes {
  index_t compute = 4;   // a parameter in a unit buffer and in its shard
  index_t gradient = 4;  // on its way
  index_t reduce = 4;    // a summed gradient
  index_t master = 0;    // the owner's second copy of a trainable parameter; 0: there is none
  index_t state = 4;     // of a state that is not exact

  // Of the owner: parameter, master and gradient of a trainable element.
  [[nodiscard]] constexpr index_t trainable() const { return compute + master + reduce; }
  // Elements between two places where storage of any kind may start.
  [[nodiscard]] constexpr index_t aligned_elements() const {
    return static_cast<index_t>(storage_alignment) / std::min({compute, gradient, reduce});
  }
  friend constexpr bool operator==(const storage_bytes&, const storage_bytes&) = default;
};

// The types of a model, each float, bfloat16 or float16:
//
//   Compute    parameters that a trainer reads: what is gathered and stands in unit buffers
//   Gradient   gradients that it writes: what a reduction moves
//   Reduce     contributions are summed in it, in rank order, and owners keep the sum in it
//   Master     parameters that the optimizer updates. If it is not Compute, the owner has a shard
//              of each; the Compute one is the other, rounded to nearest
//   State      optimizer states, but for exact ones, which are float
//
// Optimizers compute in float whatever is stored. A 16-bit Master or State is widened for an update
// and written back by stochastic rounding, so that small changes are not lost.
template <class Compute = float, class Gradient = Compute, class Reduce = float,
          class Master = float, class State = float>
struct precision {
  static_assert(StoredElement<Compute> && StoredElement<Gradient> && StoredElement<Reduce> &&
                    StoredElement<Master> && StoredElement<State>,
                "mfsdp: the types of a precision are float, mfsdp::bfloat16 and mfsdp::float16");
  static_assert(std::same_as<Reduce, Gradient> || std::same_as<Reduce, float>,
                "mfsdp: precision sums gradients in Reduce, which is Gradient or float, never a "
                "narrower type");
  static_assert(std::same_as<Master, Compute> || std::same_as<Master, float>,
                "mfsdp: precision updates parameters in Master, which is Compute or float, never a "
                "narrower type");

  using compute = Compute;
  using gradient = Gradient;
  using reduce = Reduce;
  using master = Master;
  using state = State;

  // Whether the owner has parameters in two types.
  static constexpr bool has_master = !std::same_as<Master, Compute>;
  // Whether an update reads or writes other types than float.
  static constexpr bool converts_updates =
      !(std::same_as<Reduce, float> && std::same_as<Master, float> && std::same_as<State, float>);
  static constexpr storage_bytes bytes{sizeof(Compute), sizeof(Gradient), sizeof(Reduce),
                                       has_master ? sizeof(Master) : 0, sizeof(State)};

  [[nodiscard]] static std::string to_text() {
    return fmt::format("compute {} gradient {} reduce {} master {} state {}", type_name<Compute>(),
                       type_name<Gradient>(), type_name<Reduce>(), type_name<Master>(),
                       type_name<State>());
  }
};

namespace detail {

// A bijection of 64 bits in which every bit of the result depends on every bit of the input.
// Source: Steele, Lea & Flood, Fast Splittable Pseudorandom Number Generators (SplitMix64).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ x >> 27) * 0x94D0'49BB'1331'11EB;
  return x ^ x >> 31;
}

inline constexpr std::uint64_t golden_gamma = 0x9E37'79B9'7F4A'7C15;

}  // namespace detail

// What is rounded: a parameter or one of its states, in one step. Another of any of these is
// another, independent sequence of random bits.
struct rounding_stream {
  std::uint64_t seed = 0;
  std::size_t item = 0;   // of the plan
  std::size_t value = 0;  // 0: the parameter; k + 1: its state k
  std::int64_t step = 0;

  [[nodiscard]] constexpr std::uint64_t key() const {
    std::uint64_t key = seed;
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(item), static_cast<std::uint64_t>(value),
          static_cast<std::uint64_t>(step)}) {
      key = detail::mix(key + detail::golden_gamma) ^ part;
    }
    return detail::mix(key);
  }
};

// The random bits of an element: a function of the key and of its index in the whole item, so that
// neither cuts nor ranks nor the order of evaluation change them.
[[nodiscard]] constexpr std::uint32_t rounding_bits(std::uint64_t key, index_t index) {
  return static_cast<std::uint32_t>(
      detail::mix(key + detail::golden_gamma * static_cast<std::uint64_t>(index)) >> 32);
}

}  // namespace mfsdp::inline MFSDP_ABI
