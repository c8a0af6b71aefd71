// All kernels of mfsdp. Include this in one .cu file of a program (and in no other); nothing else
// in it is needed. mfsdp_cuda_kernels(<target>) writes such a file.
#pragma once

#include <cstdint>

#include "mfsdp/collective/rank_order_terms.hpp"
#include "mfsdp/cuda/kernels.hpp"
#include "mfsdp/cuda/launch.cuh"

namespace mfsdp::inline MFSDP_ABI::cuda {

template struct kernel<fill_bits<std::uint16_t>>;
template struct kernel<fill_bits<std::uint32_t>>;
template struct kernel<fill_bits<std::uint64_t>>;
template struct kernel<scaled_copy<float>>;
template struct kernel<scaled_copy<double>>;
template struct kernel<scaled_copy<bfloat16>>;
template struct kernel<scaled_copy<float16>>;
template struct kernel<convert_each<float, bfloat16>>;
template struct kernel<convert_each<float, float16>>;
template struct kernel<convert_each<bfloat16, float>>;
template struct kernel<convert_each<float16, float>>;
template struct kernel<round_each<bfloat16>>;
template struct kernel<round_each<float16>>;
template struct kernel<block_sums<float>>;
template struct kernel<block_sums<double>>;
template struct kernel<block_sums<bfloat16>>;
template struct kernel<block_sums<float16>>;
template struct kernel<ordered_sums<float>>;
template struct kernel<ordered_sums<double>>;
template struct kernel<scale_each_row<float>>;
template struct kernel<scale_each_row<double>>;
template struct kernel<permute_each<float>>;
template struct kernel<permute_each<double>>;
template struct kernel<rank_order_terms<float, float>>;
template struct kernel<rank_order_terms<double, double>>;
template struct kernel<rank_order_terms<bfloat16, bfloat16>>;
template struct kernel<rank_order_terms<bfloat16, float>>;
template struct kernel<rank_order_terms<float16, float16>>;
template struct kernel<rank_order_terms<float16, float>>;

}  // namespace mfsdp::inline MFSDP_ABI::cuda
