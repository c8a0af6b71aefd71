// Counts what a program takes from the global operator new. Include it in one file of a program: it
// replaces the operators.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "mfsdp/config.hpp"

namespace mfsdp_test {

inline std::atomic<long> allocations{0};

}  // namespace mfsdp_test

// Not inline, as the standard demands of replacements. The array forms call these. Inlined
// ones would make GCC 12 warn of free() beside operator new.
MFSDP_NOINLINE void* operator new(std::size_t size) {
  ++mfsdp_test::allocations;
  if (void* const p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
MFSDP_NOINLINE void* operator new(std::size_t size, std::align_val_t alignment) {
  ++mfsdp_test::allocations;
  const std::size_t unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (size / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
MFSDP_NOINLINE void operator delete(void* p) noexcept {
  std::free(p);
}
MFSDP_NOINLINE void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
MFSDP_NOINLINE void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
MFSDP_NOINLINE void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
