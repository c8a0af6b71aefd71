#include "emulation/product.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <bit>

#include "mfsdp/dtype.hpp"

namespace emulation {

namespace {

template <class F>
void with_type(cudaDataType type, F&& f) {
  switch (type) {
    case CUDA_R_64F:
      return f(double{});
    case CUDA_R_16BF:
      return f(mfsdp::bfloat16{});
    case CUDA_R_16F:
      return f(mfsdp::float16{});
    default:
      return f(float{});
  }
}

template <class Real>
using dense = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;

Eigen::Index index(std::uint64_t size) {
  return static_cast<Eigen::Index>(size);
}

// Calls f(row, column, element) for each element of one matrix of the batch.
template <class T, class F>
void for_each(const matrix_layout& in, std::int64_t batch, T* data, F&& f) {
  T* const first = data + batch * in.stride;
  for (std::uint64_t outer = 0; outer < in.runs(); ++outer) {
    T* const run = first + static_cast<std::int64_t>(outer) * in.leading;
    for (std::uint64_t inner = 0; inner < in.run(); ++inner) {
      f(index(in.row_major ? outer : inner), index(in.row_major ? inner : outer), run[inner]);
    }
  }
}

template <class Real>
dense<Real> load(const matrix_layout& from, std::int64_t batch, const void* data) {
  dense<Real> result(index(from.rows), index(from.cols));
  with_type(from.type, [&]<class T>(T) {
    for_each(from, batch, static_cast<const T*>(data),
             [&](auto i, auto j, T value) { result(i, j) = static_cast<Real>(value); });
  });
  return result;
}

// To nearest, ties away from zero.
float to_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & 0xFFFF'E000);
}

template <class Real>
void multiply_as(const product& p, double alpha, const void* a, const void* b, double beta,
                 const void* c, void* d) {
  for (std::int64_t batch = 0; batch < p.d.batch; ++batch) {
    dense<Real> sum = dense<Real>::Zero(index(p.d.rows), index(p.d.cols));
    if (alpha != 0) {
      dense<Real> left = load<Real>(p.a, batch, a);
      dense<Real> right = load<Real>(p.b, batch, b);
      if constexpr (std::same_as<Real, float>) {
        if (p.tf32) left = left.unaryExpr(&to_tf32), right = right.unaryExpr(&to_tf32);
      }
      if (p.transpose_a) left.transposeInPlace();
      if (p.transpose_b) right.transposeInPlace();
      for (Eigen::Index part = 0; part < p.parts; ++part) {
        const Eigen::Index first = left.cols() * part / p.parts;
        const Eigen::Index size = left.cols() * (part + 1) / p.parts - first;
        sum.noalias() += left.middleCols(first, size) * right.middleRows(first, size);
      }
      sum *= static_cast<Real>(alpha);
    }
    if (beta != 0) sum += static_cast<Real>(beta) * load<Real>(p.c, batch, c);
    with_type(p.d.type, [&]<class T>(T) {
      for_each(p.d, batch, static_cast<T*>(d),
               [&](auto i, auto j, T& value) { value = static_cast<T>(sum(i, j)); });
    });
  }
}

}  // namespace

std::size_t bytes_of(cudaDataType type) {
  std::size_t bytes = 0;
  with_type(type, [&]<class T>(T) { bytes = sizeof(T); });
  return bytes;
}

void multiply(const product& p, double alpha, const void* a, const void* b, double beta,
              const void* c, void* d) {
  (p.double_arithmetic ? multiply_as<double> : multiply_as<float>)(p, alpha, a, b, beta, c, d);
}

}  // namespace emulation
