// eigen_backend: host memory and arithmetic, the reference for every other backend. The only
// includer of Eigen. Build with EIGEN_DONT_PARALLELIZE: one thread for each product.
#pragma once

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <tuple>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/precision.hpp"

#if defined(EIGEN_HAS_OPENMP) && !defined(EIGEN_DONT_PARALLELIZE)
#error "mfsdp: ranks are threads already; compile with -DEIGEN_DONT_PARALLELIZE or without OpenMP"
#endif

namespace mfsdp::inline MFSDP_ABI {

// Elements in host memory, aligned to storage_alignment, of undefined content: NaN in checked
// builds. Move-only; a buffer that was moved from is empty. Errors: std::bad_alloc.
template <class T>
  requires std::is_trivially_copyable_v<T>
class host_buffer {
 public:
  host_buffer() = default;
  explicit host_buffer(index_t elements)
      : size_(static_cast<std::size_t>(elements)),
        data_(static_cast<T*>(::operator new(size_ * sizeof(T), alignment))) {
    if constexpr (checked && std::numeric_limits<T>::has_quiet_NaN) {
      std::fill_n(data_.get(), size_, std::numeric_limits<T>::quiet_NaN());
    }
  }

  [[nodiscard]] std::span<T> span() { return {data_.get(), data_ ? size_ : 0}; }
  [[nodiscard]] std::span<const T> span() const { return {data_.get(), data_ ? size_ : 0}; }

 private:
  static constexpr std::align_val_t alignment{storage_alignment};
  struct release {
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };

  std::size_t size_ = 0;
  std::unique_ptr<T[], release> data_;
};

// The members are those of Backend. Stateless, so copies are free and calls from several threads
// are safe.
class eigen_backend {
 public:
  static constexpr bool host_memory = true;

  template <class T>
  [[nodiscard]] host_buffer<T> allocate(index_t elements) const {
    return host_buffer<T>(elements);
  }

  template <class T>
  void fill(std::span<T> x, std::type_identity_t<T> value) const {
    std::fill(x.begin(), x.end(), value);
  }

  template <class T>
  void copy(std::type_identity_t<std::span<const T>> from, std::span<T> to) const {
    assert(from.size() == to.size());
    std::copy(from.begin(), from.end(), to.begin());
  }

  // d = alpha op(a) op(b) + beta c, where d (m x n) is c or apart from it, and apart from op(a)
  // (m x k) and op(b) (k x n); beta = 0 does not read c. Equal shapes on operands aligned to
  // storage_alignment give equal bits (Eigen chooses its path by shape and alignment). 2 m n k
  // operations; Eigen packs both operands into temporary memory.
  template <class T>
  MFSDP_NOINLINE void multiply(std::type_identity_t<T> alpha,
                               std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                               std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                               std::type_identity_t<T> beta,
                               std::type_identity_t<matrix_view<const T>> c,
                               matrix_view<T> d) const {
    const auto left = map(a);
    const auto right = map(b);
    auto out = map(d);
    if (beta == T(0)) {
      out.setZero();
    } else if (beta != T(1) || c.data() != d.data()) {
      out = beta * map(c);
    }
    const bool flip_a = op_a == transpose::yes;
    const bool flip_b = op_b == transpose::yes;
    if (!flip_a && !flip_b) out.noalias() += alpha * left * right;
    if (!flip_a && flip_b) out.noalias() += alpha * left * right.transpose();
    if (flip_a && !flip_b) out.noalias() += alpha * left.transpose() * right;
    if (flip_a && flip_b) out.noalias() += alpha * left.transpose() * right.transpose();
  }

  // The reference has no shortcut: the whole product, then the lower triangle as the upper one.
  template <class T>
  void multiply_symmetric(std::type_identity_t<T> alpha,
                          std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                          std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                          std::type_identity_t<T> beta,
                          std::type_identity_t<matrix_view<const T>> c, matrix_view<T> d) const {
    multiply<T>(alpha, a, op_a, b, op_b, beta, c, d);
    for (index_t i = 0; i < d.rows(); ++i) {
      for (index_t j = 0; j < i; ++j) d.data()[j * d.cols() + i] = d.data()[i * d.cols() + j];
    }
  }

  template <class T>
  void row_sums_of_squares(matrix_view<T> a, std::span<std::remove_const_t<T>> sums) const {
    for (index_t i = 0; i < a.rows(); ++i) {
      sums[static_cast<std::size_t>(i)] = static_cast<std::remove_const_t<T>>(
          sum_of_squares(slice(a.flat(), i * a.cols(), a.cols())));
    }
  }

  template <class T>
  void scale_rows(std::type_identity_t<std::span<const T>> factors, matrix_view<T> a) const {
    for (index_t i = 0; i < a.rows(); ++i) {
      const T factor = factors[static_cast<std::size_t>(i)];
      transform(detail::scale_by<T>{factor}, slice(a.flat(), i * a.cols(), a.cols()));
    }
  }

  // Between float and a 16-bit type, to nearest.
  template <class From, class To>
  MFSDP_NOINLINE void convert(std::span<From> from, std::span<To> to) const {
    assert(from.size() == to.size());
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<To>(from[i]);
  }

  template <class T>
  MFSDP_NOINLINE void round_stochastically(std::type_identity_t<std::span<const float>> from,
                                           std::span<T> to, std::uint64_t key,
                                           index_t first) const {
    assert(from.size() == to.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = T::stochastic(from[i], rounding_bits(key, first + static_cast<index_t>(i)));
    }
  }

  // Householder tridiagonalisation and implicit QR, in double whatever T is: about 9 n^3 operations
  // at the speed of memory, and temporary memory for 2 n^2 doubles. The rows of a row-major matrix
  // are the columns of a column-major one.
  template <class T>
  [[nodiscard]] bool symmetric_eigen(matrix_view<T> a, std::span<T> values) const {
    if (a.size() == 0) return true;
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>> vectors(a.data(), a.cols(),
                                                                         a.rows());
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(vectors.template cast<double>());
    if (solver.info() != Eigen::Success || !solver.eigenvectors().allFinite()) return false;
    vectors = solver.eigenvectors().template cast<T>();
    for (auto vector : vectors.colwise()) {
      index_t largest = 0;
      vector.cwiseAbs().maxCoeff(&largest);
      if (vector[largest] < T(0)) vector = -vector;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<T>(solver.eigenvalues()[static_cast<index_t>(i)]);
    }
    return true;
  }

  // Householder QR of the transpose: 4 n r^2 - 4/3 r^3 operations for r x n.
  template <class T>
  void orthonormalize_rows(matrix_view<T> a) const {
    if (a.size() == 0) return;
    using columns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
    Eigen::Map<columns> transposed(a.data(), a.cols(), a.rows());
    const T largest = transposed.cwiseAbs().maxCoeff();
    if (largest > T(0)) transposed /= largest;  // squares of the rest neither vanish nor overflow
    const Eigen::HouseholderQR<columns> qr(transposed);
    transposed = qr.householderQ() * columns::Identity(a.cols(), a.rows());
    for (index_t i = 0; i < a.rows(); ++i) {  // Householder leaves the signs of R's diagonal open
      if (qr.matrixQR()(i, i) < T(0)) transposed.col(i) = -transposed.col(i);
    }
  }

  template <class T>
  void permute(std::type_identity_t<matrix_view<const T>> a, std::span<const index_t> rows,
               std::span<const index_t> cols, matrix_view<T> b) const {
    const auto at = [](std::span<const index_t> order, index_t i) {
      return order.empty() ? i : order[static_cast<std::size_t>(i)];
    };
    for (index_t i = 0; i < b.rows(); ++i) {
      const T* row = a.data() + at(rows, i) * a.cols();
      for (index_t j = 0; j < b.cols(); ++j) b.data()[i * b.cols() + j] = row[at(cols, j)];
    }
  }

  // kernel(x...) over spans of equal size; those of constant elements are only read. The kernel
  // sees Eigen arrays of a fixed size, hence always packets: neither alignment nor tails nor cuts
  // change the result of an element. Mathematical functions need a using-declaration, so that
  // `sqrt(v)` finds the one for arrays as well as the one for scalars; Eigen's are within an ulp or
  // two, flush denormals and may give NaN for infinity.
  template <class Kernel, class... T>
  void transform(const Kernel& kernel, std::span<T>... x) const {
    const std::size_t size = std::min({x.size()...});
    assert(((x.size() == size) && ...));
    std::size_t at = 0;
    for (; at + block_size <= size; at += block_size) run(kernel, block_map<T>(x.data() + at)...);
    if (at == size) return;
    std::tuple<block<T>...> padded;
    std::apply(
        [&](block<T>&... tail) {
          (load(x.subspan(at), tail), ...);
          run(kernel, block_map<T>(tail.data())...);
          (store(tail, x.subspan(at)), ...);
        },
        padded);
  }

  template <class Kernel, class S, class... T>
  void transform_by_sum(const Kernel& kernel, std::span<S> summed, std::span<T>... x) const {
    const double sum = sum_of_squares(summed);
    transform([&kernel, &sum](auto&... each) { kernel(sum, each...); }, x...);
  }

  // The sum of squares in double: blocks of block_elements, each summed in eight fixed lanes, added
  // in order. Neither alignment nor the compiler's vectorisation changes a bit for float and less.
  template <class T>
  [[nodiscard]] double sum_of_squares(std::span<T> x) const {
    double sum = 0;
    for (std::size_t at = 0; at < x.size(); at += block_elements) {
      const std::size_t count = std::min(block_elements, x.size() - at);
      sum += block_sum<std::remove_const_t<T>>(x.subspan(at, count));
    }
    return sum;
  }

 private:
  // A multiple of every packet, small enough that a padded tail costs little.
  static constexpr std::size_t block_size = 64;

  template <class T>
  using block = Eigen::Array<std::remove_const_t<T>, static_cast<int>(block_size), 1>;
  template <class T>
  using block_map = Eigen::Map<std::conditional_t<std::is_const_v<T>, const block<T>, block<T>>>;
  template <class T>
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  template <class T>
  static Eigen::Map<matrix<T>> map(matrix_view<T> m) {
    return {m.data(), m.rows(), m.cols()};
  }
  template <class T>
  static Eigen::Map<const matrix<T>> map(matrix_view<const T> m) {
    return {m.data(), m.rows(), m.cols()};
  }

  template <class Kernel, class... Block>
  MFSDP_NOINLINE static void run(const Kernel& kernel, Block... x) {
    kernel(x...);
  }

  // The padding repeats an element of the tail: no lane meets an operand that no element has.
  template <class T>
  static void load(std::span<T> x, block<T>& tail) {
    std::fill(std::copy(x.begin(), x.end(), tail.data()), tail.data() + block_size, x[0]);
  }
  template <class T>
  static void store(const block<T>& tail, std::span<T> x) {
    if constexpr (!std::is_const_v<T>) std::copy_n(tail.data(), x.size(), x.begin());
  }

  template <class T>
  MFSDP_NOINLINE static double block_sum(std::span<const T> x) {
    constexpr std::size_t lanes = 8;
    std::array<double, lanes> sum{};
    std::array<T, lanes> tail{};
    for (std::size_t at = 0; at < x.size(); at += lanes) {
      const T* p = x.data() + at;
      if (at + lanes > x.size()) {
        std::copy(x.begin() + static_cast<index_t>(at), x.end(), tail.begin());
        p = tail.data();
      }
      for (std::size_t i = 0; i < lanes; ++i) {
        const double value = static_cast<double>(p[i]);
        sum[i] += value * value;
      }
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }
};

static_assert(DecomposingBackend<eigen_backend> && HostMemory<eigen_backend>);
static_assert(ConvertingBackend<eigen_backend, bfloat16> &&
              ConvertingBackend<eigen_backend, float16>);

}  // namespace mfsdp::inline MFSDP_ABI
