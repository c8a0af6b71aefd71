#include "mfsdp/dtype.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

namespace dtype_test {

using mfsdp::bfloat16, mfsdp::float16;

namespace {

constexpr int patterns = 65536;

template <class T>
T of(int bits) {
  return T::from_bits(static_cast<std::uint16_t>(bits));
}

// What the 16 bits stand for, from the definition of the format.
template <class T>
double value_of(int bits) {
  constexpr int fraction = std::numeric_limits<T>::digits - 1;
  constexpr int bias = std::numeric_limits<T>::max_exponent - 1;
  const int exponent = (bits & 0x7FFF) >> fraction;
  const int mantissa = bits & ((1 << fraction) - 1);
  double value = std::ldexp(mantissa + (exponent > 0 ? 1 << fraction : 0),
                            std::max(exponent, 1) - bias - fraction);
  if (exponent == 2 * bias + 1) {
    value = mantissa > 0 ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  }
  return bits & 0x8000 ? -value : value;
}

// The bits of every finite number that is not negative, in order; the next one is infinity.
template <class T>
constexpr int finite_patterns = std::numeric_limits<T>::infinity().bits();

}  // namespace

TEST_CASE_TEMPLATE("every pattern of 16 bits has its value and comes back from float", T, bfloat16,
                   float16) {
  int wrong = 0;
  for (int bits = 0; bits < patterns; ++bits) {
    const float value = static_cast<float>(of<T>(bits));
    const double expected = value_of<T>(bits);
    const T back(value);
    if (std::isnan(expected)) {
      wrong += std::isnan(value) && std::isnan(static_cast<float>(back)) ? 0 : 1;
      wrong += std::signbit(value) == (bits >= 0x8000) ? 0 : 1;
    } else {
      wrong += value == expected && back.bits() == bits ? 0 : 1;
      wrong += std::signbit(value) == std::signbit(expected) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("rounding takes the nearest number, and the even one of two", T, bfloat16,
                   float16) {
  int wrong = 0;
  for (int bits = 0; bits < finite_patterns<T>; ++bits) {
    // Infinity stands for the number that would follow the largest one.
    const double low = value_of<T>(bits);
    const double high = bits + 1 < finite_patterns<T>
                            ? value_of<T>(bits + 1)
                            : std::ldexp(1.0, std::numeric_limits<T>::max_exponent);
    const float tie = static_cast<float>(low + (high - low) / 2);  // exact
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const int minus = sign < 0 ? 0x8000 : 0;
      wrong += T(sign * tie).bits() == even + minus ? 0 : 1;
      wrong += T(sign * std::nextafter(tie, 0.0f)).bits() == bits + minus ? 0 : 1;
      const float above = std::nextafter(tie, std::numeric_limits<float>::infinity());
      wrong += T(sign * above).bits() == bits + 1 + minus ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("infinity, NaN and what lies beyond the range", T, bfloat16, float16) {
  using limits = std::numeric_limits<T>;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(T(infinity).bits() == limits::infinity().bits());
  CHECK(T(-infinity).bits() == limits::infinity().bits() + 0x8000);
  CHECK(T(std::numeric_limits<float>::max()) == limits::infinity());
  CHECK(T(std::numeric_limits<float>::denorm_min()) == T(0.0f));
  CHECK(std::signbit(static_cast<float>(T(-0.0f))));
  for (const std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    CHECK(std::isnan(static_cast<float>(T(std::bit_cast<float>(bits)))));
    CHECK(std::isnan(static_cast<float>(T::stochastic(std::bit_cast<float>(bits), 0xFFFFFFFF))));
  }
  CHECK_FALSE(limits::quiet_NaN() == limits::quiet_NaN());
  CHECK(T(-0.0f) == T(0.0f));
}

TEST_CASE_TEMPLATE("stochastic rounding keeps what is representable, whatever the random bits", T,
                   bfloat16, float16) {
  int wrong = 0;
  for (int bits = 0; bits < patterns; ++bits) {
    if (std::isnan(value_of<T>(bits))) continue;
    for (const std::uint32_t random : {0u, 0x80000000u, 0xFFFFFFFFu}) {
      const float value = static_cast<float>(of<T>(bits));
      wrong += T::stochastic(value, random).bits() == bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("stochastic rounding gives a neighbour, in proportion to its closeness", T,
                   bfloat16, float16) {
  std::mt19937 random(1);
  for (const int bits : {0, 1, 0x0023, 0x0400, 0x1234, 0x3C00, 0x3FFF, finite_patterns<T> - 2}) {
    for (const float sign : {1.0f, -1.0f}) {
      for (const double part : {0.125, 0.5, 0.75}) {
        const double low = value_of<T>(bits);
        const double high = value_of<T>(bits + 1);
        const float value = sign * static_cast<float>(low + part * (high - low));
        constexpr int draws = 40000;
        int up = 0;
        int neither = 0;
        for (int i = 0; i < draws; ++i) {
          const int result = T::stochastic(value, random()).bits() & 0x7FFF;
          up += result == bits + 1;
          neither += result != bits && result != bits + 1;
        }
        CAPTURE(bits);
        CAPTURE(part);
        CHECK(neither == 0);
        // Five standard deviations.
        CHECK(std::abs(up - draws * part) < 5 * std::sqrt(draws * part * (1 - part)));
      }
    }
  }
}

TEST_CASE_TEMPLATE("no finite number becomes infinite by chance", T, bfloat16, float16) {
  using limits = std::numeric_limits<T>;
  const float largest = static_cast<float>(limits::max());
  for (const std::uint32_t random : {0u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    CHECK(T::stochastic(largest, random) == limits::max());
    CHECK(T::stochastic(std::nextafter(largest, std::numeric_limits<float>::infinity()), random) ==
          limits::max());
    CHECK(T::stochastic(std::numeric_limits<float>::max(), random) == limits::infinity());
    CHECK(T::stochastic(-std::numeric_limits<float>::infinity(), random).bits() ==
          limits::infinity().bits() + 0x8000);
  }
}

TEST_CASE("limits are those of the formats") {
  using bf16 = std::numeric_limits<bfloat16>;
  using fp16 = std::numeric_limits<float16>;
  CHECK(static_cast<float>(bf16::max()) == 0x1.FEp127f);
  CHECK(static_cast<float>(fp16::max()) == 65504.0f);
  CHECK(static_cast<float>(bf16::lowest()) == -0x1.FEp127f);
  CHECK(static_cast<float>(bf16::min()) == 0x1p-126f);
  CHECK(static_cast<float>(fp16::min()) == 0x1p-14f);
  CHECK(static_cast<float>(bf16::denorm_min()) == 0x1p-133f);
  CHECK(static_cast<float>(fp16::denorm_min()) == 0x1p-24f);
  CHECK(static_cast<float>(bf16::epsilon()) == 0x1p-7f);
  CHECK(static_cast<float>(fp16::epsilon()) == 0x1p-10f);
  CHECK(static_cast<float>(bf16::round_error()) == 0.5f);
  CHECK(static_cast<float>(fp16::round_error()) == 0.5f);
  static_assert(bf16::digits10 == 2 && bf16::max_digits10 == 4);
  static_assert(fp16::digits10 == 3 && fp16::max_digits10 == 5);
  static_assert(bf16::min_exponent10 == -37 && bf16::max_exponent10 == 38);
  static_assert(fp16::min_exponent10 == -4 && fp16::max_exponent10 == 4);
}

TEST_CASE(
    "16-bit types are storage: small, trivial, converted on request only, also by compilers") {
  static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);
  static_assert(std::is_trivially_copyable_v<bfloat16> && std::is_trivial_v<float16>);
  static_assert(!std::is_convertible_v<float, bfloat16> && !std::is_convertible_v<float16, float>);
  static_assert(bfloat16(1.0f).bits() == 0x3F80 && float16(1.0f).bits() == 0x3C00);
  static_assert(static_cast<float>(float16(0x1p-24f)) == 0x1p-24f);
  static_assert(float16(65520.0f) == std::numeric_limits<float16>::infinity());
  static_assert(static_cast<double>(bfloat16(0.5f) + bfloat16(0.25f)) == 0.75);
  static_assert(mfsdp::type_name<float>() == "fp32" && mfsdp::type_name<bfloat16>() == "bf16" &&
                mfsdp::type_name<float16>() == "fp16");
}

}  // namespace dtype_test
