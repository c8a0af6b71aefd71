// cpu_backend: host memory and arithmetic at the speed of the processor. The default of
// sharded_model.
#pragma once

#include <type_traits>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/backend/packed_product.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// eigen_backend with products of float by packed_product where the processor has a kernel for it:
// symmetric products at half the operations, no allocation after a thread's first product, and the
// same bits whatever the alignment of the operands. Products of double, and all on processors
// without a kernel, are those of eigen_backend. Calls from several threads are safe.
class cpu_backend : public eigen_backend {
 public:
  // What computes the products of float; none: Eigen.
  [[nodiscard]] product_kernel kernel() const { return kernel_; }

  template <class T>
  void multiply(std::type_identity_t<T> alpha, std::type_identity_t<matrix_view<const T>> a,
                transpose op_a, std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                std::type_identity_t<T> beta, std::type_identity_t<matrix_view<const T>> c,
                matrix_view<T> d) const {
    if constexpr (std::is_same_v<T, float>) {
      if (kernel_ != product_kernel::none) {
        return packed_product(kernel_, alpha, a, op_a, b, op_b, beta, c, d);
      }
    }
    eigen_backend::multiply(alpha, a, op_a, b, op_b, beta, c, d);
  }

  template <class T>
  void multiply_symmetric(std::type_identity_t<T> alpha,
                          std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                          std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                          std::type_identity_t<T> beta,
                          std::type_identity_t<matrix_view<const T>> c, matrix_view<T> d) const {
    if constexpr (std::is_same_v<T, float>) {
      if (kernel_ != product_kernel::none) {
        return packed_product_symmetric(kernel_, alpha, a, op_a, b, op_b, beta, c, d);
      }
    }
    eigen_backend::multiply_symmetric(alpha, a, op_a, b, op_b, beta, c, d);
  }

 private:
  product_kernel kernel_ = best_product_kernel();
};

static_assert(DecomposingBackend<cpu_backend>);

}  // namespace mfsdp::inline MFSDP_ABI
