// dtype: the 16-bit floating-point types, for storage and transport. Arithmetic happens in float.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

struct float_bits {
  constexpr explicit float_bits(float value)
      : all(std::bit_cast<std::uint32_t>(value)), magnitude(all & 0x7FFF'FFFF) {}
  [[nodiscard]] constexpr bool is_nan() const { return magnitude > 0x7F80'0000; }
  [[nodiscard]] constexpr std::uint32_t sign() const { return all >> 16 & 0x8000; }

  std::uint32_t all;
  std::uint32_t magnitude;
};

// A format says how a float becomes 16 bits and back:
//   nearest(x)              the nearest value, ties to the even one; infinity beyond the range
//   stochastic(x, random)   a neighbour of x, for finite x in the range and uniform 32 random bits
// Both have no branches, so that a loop over them becomes vector code.

// The upper half of a float: 8 bits of exponent, 7 of fraction.
struct bfloat16_format {
  static constexpr std::string_view name = "bf16";
  static constexpr int digits = 8;
  static constexpr int max_exponent = 128;

  [[nodiscard]] static constexpr float widen(std::uint32_t half) {
    return std::bit_cast<float>(half << 16);
  }
  [[nodiscard]] static constexpr std::uint32_t nearest(float value) {
    const float_bits x(value);
    const std::uint32_t rounded = (x.all + 0x7FFF + (x.all >> 16 & 1)) >> 16;
    return x.is_nan() ? x.all >> 16 | 0x40 : rounded;
  }
  [[nodiscard]] static constexpr std::uint32_t stochastic(float value, std::uint32_t random) {
    return (float_bits(value).all + (random >> 16)) >> 16;
  }
};

// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
struct float16_format {
  static constexpr std::string_view name = "fp16";
  static constexpr int digits = 11;
  static constexpr int max_exponent = 16;

  [[nodiscard]] static constexpr float widen(std::uint32_t half) {
    const std::uint32_t magnitude = (half & 0x7FFF) << 13;
    const std::uint32_t rebias = magnitude < 0x0F80'0000 ? exponents : 2 * exponents;
    // A subnormal gets the exponent of the smallest normal number and a leading one too many.
    const float normal = std::bit_cast<float>(magnitude + rebias);
    const float tiny =
        std::bit_cast<float>(std::min(magnitude, 0x0080'0000u) + smallest_normal) - 0x1p-14f;
    const std::uint32_t bits =
        std::bit_cast<std::uint32_t>(magnitude < 0x0080'0000 ? tiny : normal);
    return std::bit_cast<float>(bits | (half & 0x8000) << 16);
  }
  [[nodiscard]] static constexpr std::uint32_t nearest(float value) {
    const float_bits x(value);
    const std::uint32_t normal = (x.magnitude - exponents + 0x0FFF + (x.magnitude >> 13 & 1)) >> 13;
    // One half has the spacing of the subnormals: adding it rounds to them.
    const float tiny = std::bit_cast<float>(std::min(x.magnitude, smallest_normal)) + 0.5f;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(tiny) - std::bit_cast<std::uint32_t>(0.5f);
    const std::uint32_t finite = x.magnitude < smallest_normal ? subnormal : normal;
    const std::uint32_t bounded = x.magnitude < 0x477F'F000 ? finite : 0x7C00;
    return x.sign() | (x.is_nan() ? 0x7E00 | (x.magnitude >> 13 & 0x03FF) : bounded);
  }
  // Among subnormals to 2^-20 of their spacing, elsewhere exact.
  [[nodiscard]] static constexpr std::uint32_t stochastic(float value, std::uint32_t random) {
    const float_bits x(value);
    const std::uint32_t normal = (x.magnitude - exponents + (random >> 19)) >> 13;
    const float tiny = std::bit_cast<float>(std::min(x.magnitude, smallest_normal));
    const auto fixed = static_cast<std::uint32_t>(static_cast<std::int32_t>(tiny * 0x1p44f));
    const std::uint32_t subnormal = (fixed + (random >> 12)) >> 20;
    return x.sign() | (x.magnitude < smallest_normal ? subnormal : normal);
  }

 private:
  static constexpr std::uint32_t exponents = 112u << 23;        // between the two biases
  static constexpr std::uint32_t smallest_normal = 113u << 23;  // 2^-14 as a float
};

}  // namespace detail

// A floating-point number of 16 bits, trivially copyable, of undefined value if not initialised.
template <class Format>
class basic_half {
 public:
  static constexpr std::string_view name = Format::name;

  basic_half() = default;

  // Rounds to nearest, ties to even. Values beyond the range become infinite, NaN stays NaN.
  constexpr explicit basic_half(float value)
      : bits_(static_cast<std::uint16_t>(Format::nearest(value))) {}

  // Rounds to one of the two neighbours, to the closer one more often: the mean over uniform random
  // bits is the value itself. What is representable stays. Beyond the largest finite number, and
  // for NaN, as to nearest: no finite number becomes infinite by chance.
  [[nodiscard]] static constexpr basic_half stochastic(float value, std::uint32_t random) {
    const bool inside = detail::float_bits(value).magnitude <=
                        std::bit_cast<std::uint32_t>(Format::widen(infinity_bits - 1));
    return from_bits(static_cast<std::uint16_t>(inside ? Format::stochastic(value, random)
                                                       : Format::nearest(value)));
  }

  [[nodiscard]] static constexpr basic_half from_bits(std::uint16_t bits) {
    basic_half result{};
    result.bits_ = bits;
    return result;
  }
  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }

  template <std::floating_point T>
  [[nodiscard]] constexpr explicit operator T() const {
    return static_cast<T>(Format::widen(bits_));
  }

  // The sum in float, rounded to nearest: what adding up contributions needs.
  friend constexpr basic_half operator+(basic_half a, basic_half b) {
    return basic_half(static_cast<float>(a) + static_cast<float>(b));
  }
  friend constexpr bool operator==(basic_half a, basic_half b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }

 private:
  static constexpr std::uint16_t infinity_bits = 0x8000 - (1 << (Format::digits - 1));

  std::uint16_t bits_;
};

using bfloat16 = basic_half<detail::bfloat16_format>;
using float16 = basic_half<detail::float16_format>;

// What parameters, gradients and states can be stored in.
template <class T>
concept StoredElement =
    std::same_as<T, float> || std::same_as<T, bfloat16> || std::same_as<T, float16>;

// "fp32", "bf16" or "fp16".
template <StoredElement T>
[[nodiscard]] constexpr std::string_view type_name() {
  if constexpr (std::same_as<T, float>) {
    return "fp32";
  } else {
    return T::name;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI

// What differs from float.
template <class Format>
class std::numeric_limits<mfsdp::basic_half<Format>> : public std::numeric_limits<float> {
  using half = mfsdp::basic_half<Format>;
  static constexpr int fraction = Format::digits - 1;
  static constexpr int infinity_bits = 0x8000 - (1 << fraction);
  static constexpr half of(int bits) { return half::from_bits(static_cast<std::uint16_t>(bits)); }

 public:
  static constexpr int digits = Format::digits;
  static constexpr int digits10 = fraction * 301 / 1000;
  static constexpr int max_digits10 = 2 + digits * 301 / 1000;
  static constexpr int max_exponent = Format::max_exponent;
  static constexpr int max_exponent10 = max_exponent * 301 / 1000;
  static constexpr int min_exponent = 3 - max_exponent;
  static constexpr int min_exponent10 = (min_exponent - 1) * 301 / 1000;

  static constexpr half min() noexcept { return of(1 << fraction); }
  static constexpr half max() noexcept { return of(infinity_bits - 1); }
  static constexpr half lowest() noexcept { return of(0x8000 + infinity_bits - 1); }
  static constexpr half epsilon() noexcept { return of((max_exponent - digits) << fraction); }
  static constexpr half round_error() noexcept { return of((max_exponent - 2) << fraction); }
  static constexpr half infinity() noexcept { return of(infinity_bits); }
  static constexpr half quiet_NaN() noexcept { return of(infinity_bits + (1 << (fraction - 1))); }
  static constexpr half signaling_NaN() noexcept {
    return of(infinity_bits + (1 << (fraction - 2)));
  }
  static constexpr half denorm_min() noexcept { return of(1); }
};
