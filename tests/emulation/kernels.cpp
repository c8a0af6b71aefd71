// The kernels that nvcc compiles for a program, here by the launch.cuh of tests/emulation/launch.
#include "conformance/backend.hpp"
#include "lordo/cuda/instantiate.cuh"
#include "mfsdp/cuda/instantiate.cuh"

namespace mfsdp::inline MFSDP_ABI::cuda {

template struct kernel<elementwise<mfsdp_test::sample_step<float>, float, 3>>;
template struct kernel<elementwise<mfsdp_test::sample_step<double>, double, 3>>;
template struct kernel<elementwise<with_sum<mfsdp_test::sample_share<float>>, float, 1>>;
template struct kernel<elementwise<with_sum<mfsdp_test::sample_share<float>>, float, 2>>;
template struct kernel<elementwise<with_sum<mfsdp_test::sample_share<double>>, double, 1>>;
template struct kernel<elementwise<with_sum<mfsdp_test::sample_share<double>>, double, 2>>;

}  // namespace mfsdp::inline MFSDP_ABI::cuda
