// All kernels of mfsdp. Include this in one .cu file of a program (and in no other); nothing else
// in it is needed. mfsdp_cuda_kernels(<target>) writes such a file.
#pragma once

#include <cstdint>

#include "mfsdp/collective/rank_order_terms.hpp"
#include "mfsdp/cuda/kernels.hpp"
#include "mfsdp/cuda/launch.cuh"
#include "mfsdp/kernel.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/muon_form.hpp"
#include "mfsdp/optimizer/newton_schulz.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/sgd.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"

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

template struct kernel<elementwise<mfsdp::detail::adam_direction<float>, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::adam_direction<double>, double, 3>>;
template struct kernel<elementwise<mfsdp::detail::adamw_step<float>, float, 4>>;
template struct kernel<elementwise<mfsdp::detail::adamw_step<double>, double, 4>>;
template struct kernel<elementwise<mfsdp::detail::add, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::add, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::add_scaled<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::add_scaled<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::average_square<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::average_square<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::average_twice<float>, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::average_twice<double>, double, 3>>;
template struct kernel<elementwise<mfsdp::detail::cautious_adamw_step<float>, float, 4>>;
template struct kernel<elementwise<mfsdp::detail::cautious_adamw_step<double>, double, 4>>;
template struct kernel<elementwise<mfsdp::detail::cautious_descend<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::cautious_descend<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::chaotic_map<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::chaotic_map<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::descend<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::descend<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::change_since, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::divide_by_root<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::divide_by_root<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::divide_by_size<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::divide_by_size<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::divided_copy, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::filter_gradient<float>, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::filter_gradient<double>, double, 3>>;
template struct kernel<elementwise<mfsdp::detail::inverse_root<float>, float, 1>>;
template struct kernel<elementwise<mfsdp::detail::inverse_root<double>, double, 1>>;
template struct kernel<elementwise<mfsdp::detail::momentum_step<float>, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::momentum_step<double>, double, 3>>;
template struct kernel<elementwise<with_sum<mfsdp::detail::normalize<float>>, float, 1>>;
template struct kernel<elementwise<with_sum<mfsdp::detail::normalize<double>>, double, 1>>;
template struct kernel<elementwise<with_sum<mfsdp::detail::normalize<float>>, float, 2>>;
template struct kernel<elementwise<with_sum<mfsdp::detail::normalize<double>>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::product_of, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::product_of, double, 3>>;
template struct kernel<elementwise<mfsdp::detail::root_of_eigenvalue<float>, float, 1>>;
template struct kernel<elementwise<mfsdp::detail::root_of_eigenvalue<double>, double, 1>>;
template struct kernel<elementwise<mfsdp::detail::row_factor<float>, float, 2>>;
template struct kernel<elementwise<mfsdp::detail::row_factor<double>, double, 2>>;
template struct kernel<elementwise<mfsdp::detail::scale_by<float>, float, 1>>;
template struct kernel<elementwise<mfsdp::detail::scale_by<double>, double, 1>>;
template struct kernel<elementwise<mfsdp::detail::sgd_step<float>, float, 3>>;
template struct kernel<elementwise<mfsdp::detail::sgd_step<double>, double, 3>>;

}  // namespace mfsdp::inline MFSDP_ABI::cuda
