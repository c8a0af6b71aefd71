// Build-time switches. The only header with compiler or build conditions.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "mfsdp needs C++20: compile with -std=c++20"
#endif

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "mfsdp: -ffast-math (-ffinite-math-only) hides infinities and NaN; include mfsdp without it"
#endif

#include <cstddef>

#include "mfsdp/version.hpp"

// MFSDP_CHECKED=1 poisons memory that nobody may read: fresh buffers, parameter slots between
// release and acquire, gradient buffers before they are written. It also looks for broken promises
// of a user's parts: states that differ between sites, bases that are not orthonormal. On in builds
// without NDEBUG.
#ifndef MFSDP_CHECKED
#ifdef NDEBUG
#define MFSDP_CHECKED 0
#else
#define MFSDP_CHECKED 1
#endif
#endif

// Everything lives in an inline namespace that names the version and the behaviour switch, so
// that two translation units built differently can be linked without sharing a definition.
#if MFSDP_CHECKED
#define MFSDP_ABI v0_1_checked
#else
#define MFSDP_ABI v0_1
#endif

// Keeps one copy of a kernel per element type: every caller then runs the same instructions, so
// that results do not depend on how the compiler treated each call site.
#if defined(_MSC_VER)
#define MFSDP_NOINLINE __declspec(noinline)
#else
#define MFSDP_NOINLINE __attribute__((noinline))
#endif

// Functions that kernels of a device call. Empty for a host compiler. Under
// nvcc fmt 9 takes its constexpr functions for plain ones, which its format strings then call.
#if defined(__CUDACC__)
#define MFSDP_HOST_DEVICE __host__ __device__
#define FMT_USE_CONSTEXPR 1
#else
#define MFSDP_HOST_DEVICE
#endif

// Kernels and what launches them stay inside the shared library they are compiled into: kernels of
// equal names in two libraries would silently not be found.
#if defined(__CUDACC_RDC__)
#define MFSDP_KERNEL __attribute__((visibility("hidden"))) __global__
#else
#define MFSDP_KERNEL static __global__
#endif
#if defined(_MSC_VER)
#define MFSDP_HIDDEN
#else
#define MFSDP_HIDDEN __attribute__((visibility("hidden")))
#endif

// Kernels for the vector units of x86-64, chosen when the program runs.
#if defined(__x86_64__) && defined(__GNUC__)
#define MFSDP_X86_64 1
#else
#define MFSDP_X86_64 0
#endif

namespace mfsdp::inline MFSDP_ABI {

inline constexpr bool checked = MFSDP_CHECKED != 0;

// Every segment of a shard and every tensor of a unit buffer starts at this alignment (bytes).
inline constexpr std::size_t storage_alignment = 64;

// Elementwise tensors are cut, and norms are summed, in blocks of this many elements counted from
// the start of the tensor. One number for both makes the global norm independent of the cuts.
inline constexpr std::size_t block_elements = 1024;

}  // namespace mfsdp::inline MFSDP_ABI
