// The door between host code and kernels: declared here for any compiler, defined in launch.cuh for
// a CUDA compiler.
#pragma once

#include "mfsdp/cuda/runtime.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// A kernel is a body, a trivially copyable object with pointers into device memory, and what calls
// it. There are two kinds of bodies:
//   size(), operator()(i)       one call for each i below size(), in any order
//   sums(), lane(i, l), store(i, sum)   for each i below sums(): the values of lane(i, l) for l
//   below
//                      lanes, added by halves (l takes l + 16, then l + 8, ...), given to store
// Either names what it touches, for checkers: operands(visit) calls visit(pointer, elements, touch)
// for each of its pointers.
inline constexpr int lanes = 32;
enum class touch { read, write };  // write: or both

// launch queues the body on the stream; where `stored` is not null it is read from there, in device
// memory, when the kernel runs, but for its size. The device of the stream must be current. Errors:
// device_error.
//
// A linker that misses kernel<...>::launch wants one file that is compiled by nvcc:
// mfsdp_cuda_kernels(<target>) in CMake, or by hand a .cu file that includes
// mfsdp/cuda/instantiate.cuh (and lordo/cuda/instantiate.cuh). Kernels of your own: docs/cuda.md.
template <class Body>
struct kernel {
  MFSDP_HIDDEN static void launch(cudaStream_t stream, const Body& body, const Body* stored);
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
