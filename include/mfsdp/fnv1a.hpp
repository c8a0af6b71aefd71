// A hash of a text, to compare texts across ranks and runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// FNV-1a, 64 bits. Texts of one length that differ in one byte always have different hashes.
[[nodiscard]] inline std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t value = 14695981039346656037u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return value;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
