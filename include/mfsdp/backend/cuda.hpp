// cuda_backend: memory and arithmetic of one CUDA device. A host compiler and the CUDA toolkit are
// enough for this header; the kernels are compiled in one file of yours, docs/cuda.md.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/cuda/context.hpp"
#include "mfsdp/cuda/kernels.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Elements in device memory, aligned to 256 bytes, of undefined content: NaN in checked builds.
// Move-only; a buffer that was moved from is empty. What is queued on the backend's stream when a
// buffer is destroyed may still use it.
template <class T>
  requires std::is_trivially_copyable_v<T>
class device_buffer {
 public:
  device_buffer() = default;
  // Errors: device_error.
  device_buffer(std::shared_ptr<cuda::context> context, index_t elements)
      : data_(nullptr, give_back{std::move(context), static_cast<std::size_t>(elements)}) {
    data_.reset(static_cast<T*>(data_.get_deleter().from->take(bytes())));
  }
  device_buffer(device_buffer&& other) noexcept = default;
  device_buffer& operator=(device_buffer&& other) noexcept = default;

  [[nodiscard]] std::span<T> span() { return {data_.get(), size()}; }
  [[nodiscard]] std::span<const T> span() const { return {data_.get(), size()}; }

 private:
  struct give_back {
    std::shared_ptr<cuda::context> from;
    std::size_t size = 0;
    void operator()(T* data) const { from->give(data, size * sizeof(T)); }
  };
  [[nodiscard]] std::size_t size() const { return data_ ? data_.get_deleter().size : 0; }
  [[nodiscard]] std::size_t bytes() const { return data_.get_deleter().size * sizeof(T); }

  std::unique_ptr<T[], give_back> data_;
};

// The members are those of Backend, and of the concepts that refine it. Copies are the same device
// and the same stream, and may be called from several threads. Nothing but copies to and from host
// memory, sum_of_squares, permute by lists and the decompositions blocks the host; what is queued
// has its errors reported by a later call. Scratch memory comes from a pool: a repeated call
// allocates nothing. Errors: device_error.
class cuda_backend {
 public:
  explicit cuda_backend(int device = 0, cuda::product_options options = {})
      : context_(std::make_shared<cuda::context>(device, std::nullopt, options)) {}
  // On a stream of the caller's, which outlives all copies and all buffers.
  cuda_backend(int device, cudaStream_t stream, cuda::product_options options = {})
      : context_(std::make_shared<cuda::context>(device, stream, options)) {}

  [[nodiscard]] int device() const { return context_->device(); }
  // Queue your own work here, or order it by events.
  [[nodiscard]] cudaStream_t stream() const { return context_->stream(); }
  // Whether this is the memory of a device.
  [[nodiscard]] bool on_device(const void* p) const { return cuda::context::on_device(p); }
  // For cuda::recorded_step.
  [[nodiscard]] const std::shared_ptr<cuda::context>& context() const { return context_; }
  // Blocks until all that is queued is done.
  void wait() const { context_->wait(); }

  template <class T>
  [[nodiscard]] device_buffer<T> allocate(index_t elements) const {
    device_buffer<T> fresh(context_, elements);
    if constexpr (checked && std::numeric_limits<T>::has_quiet_NaN) {
      fill(fresh.span(), std::numeric_limits<T>::quiet_NaN());
    }
    return fresh;
  }

  template <class T>
  void fill(std::span<T> x, std::type_identity_t<T> value) const {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
    using bits =
        std::conditional_t<sizeof(T) == 2, std::uint16_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    if (x.empty()) return;
    const bits pattern = std::bit_cast<bits>(value);
    if (pattern == 0) return context_->clear(x.data(), x.size_bytes());
    launch(cuda::fill_bits<bits>{pattern, reinterpret_cast<bits*>(x.data()), std::ssize(x)});
  }

  // Between any two of host memory, this device and another one.
  template <class T>
  void copy(std::type_identity_t<std::span<const T>> from, std::span<T> to) const {
    assert(from.size() == to.size());
    context_->copy(from.data(), to.data(), to.size_bytes());
  }

  // By cuBLASLt, of float, double, bfloat16 and float16; alpha and beta of the last two are float.
  template <class T>
  void multiply(std::type_identity_t<cuda::product_scale<T>> alpha,
                std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                std::type_identity_t<cuda::product_scale<T>> beta,
                std::type_identity_t<matrix_view<const T>> c, matrix_view<T> d) const {
    if (d.size() == 0) return;
    const T* const added = beta == 0 ? d.data() : c.data();
    if (a.size() == 0) {  // an inner size of 0
      if (beta == 0) return fill(d.flat(), T(0));
      return launch(cuda::scaled_copy<T>{beta, added, d.data(), d.size()});
    }
    context_->multiply(cuda::products::key_of<T>(a, op_a, b, op_b, added, d), alpha, a.data(),
                       b.data(), beta, added, d.data());
  }

  // cuBLASLt has no symmetric product: the whole one.
  template <class T>
  void multiply_symmetric(std::type_identity_t<cuda::product_scale<T>> alpha,
                          std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                          std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                          std::type_identity_t<cuda::product_scale<T>> beta,
                          std::type_identity_t<matrix_view<const T>> c, matrix_view<T> d) const {
    multiply<T>(alpha, a, op_a, b, op_b, beta, c, d);
  }

  // The kernel is a named type, trivially copyable, whose call operator is MFSDP_HOST_DEVICE and
  // takes references to scalars; mfsdp/cuda/instantiate.cuh has those of the library.
  template <class Kernel, class First, class... T>
  void transform(const Kernel& kernel, std::span<First> first, std::span<T>... x) const {
    using element = std::remove_const_t<First>;
    static_assert((std::is_same_v<std::remove_const_t<T>, element> && ...),
                  "mfsdp: kernels on a device have operands of one type");
    static_assert(std::is_trivially_copyable_v<Kernel>);
    assert(((x.size() == first.size()) && ...));
    launch(cuda::elementwise<Kernel, element, 1 + sizeof...(T)>{
        kernel,
        {const_cast<element*>(first.data()), const_cast<element*>(x.data())...},
        written<First, T...>(std::index_sequence_for<First, T...>{}),
        std::ssize(first)});
  }

  // The sum stays in device memory.
  template <class Kernel, class S, class... T>
  void transform_by_sum(const Kernel& kernel, std::span<S> summed, std::span<T>... x) const {
    device_buffer<double> sum(context_, 1);
    add_squares(matrix_view<S>(summed.data(), 1, std::ssize(summed)), sum.span().data());
    transform(cuda::with_sum<Kernel>{kernel, sum.span().data()}, x...);
  }

  template <class T>
  [[nodiscard]] double sum_of_squares(std::span<T> x) const {
    device_buffer<double> sum(context_, 1);
    add_squares(matrix_view<T>(x.data(), 1, std::ssize(x)), sum.span().data());
    return context_->read(sum.span().data());
  }

  template <class T>
  void row_sums_of_squares(matrix_view<T> a, std::span<std::remove_const_t<T>> sums) const {
    add_squares(a, sums.data());
  }

  template <class T>
  void scale_rows(std::type_identity_t<std::span<const T>> factors, matrix_view<T> a) const {
    launch(cuda::scale_each_row<T>{factors.data(), a.data(), a.rows(), a.cols()});
  }

  template <class From, class To>
  void convert(std::span<From> from, std::span<To> to) const {
    assert(from.size() == to.size());
    launch(
        cuda::convert_each<std::remove_const_t<From>, To>{from.data(), to.data(), std::ssize(to)});
  }

  template <class T>
  void round_stochastically(std::type_identity_t<std::span<const float>> from, std::span<T> to,
                            std::uint64_t key, index_t first) const {
    assert(from.size() == to.size());
    launch(cuda::round_each<T>{from.data(), to.data(), key, first, std::ssize(to)});
  }

  // Lists of host memory are copied to the device, which blocks.
  template <class T>
  void permute(std::type_identity_t<matrix_view<const T>> a, std::span<const index_t> rows,
               std::span<const index_t> cols, matrix_view<T> b) const {
    device_buffer<index_t> row_order(context_, std::ssize(rows));
    device_buffer<index_t> col_order(context_, std::ssize(cols));
    copy(rows, row_order.span());
    copy(cols, col_order.span());
    launch(cuda::permute_each<T>{a.data(), row_order.span().data(), col_order.span().data(),
                                 b.data(), a.shape(), b.shape()});
  }

  // On the host, by eigen_backend: two copies and its time, during which the device has nothing to
  // do. Optimizers decompose once in many steps.
  template <class T>
  [[nodiscard]] bool symmetric_eigen(matrix_view<T> a, std::span<T> values) const {
    host_buffer<T> on_host(a.size());
    host_buffer<T> values_on_host(std::ssize(values));
    copy(a.flat(), on_host.span());
    if (!eigen_backend{}.symmetric_eigen(matrix_view<T>(on_host.span().data(), a.shape()),
                                         values_on_host.span())) {
      return false;
    }
    copy(on_host.span(), a.flat());
    copy(values_on_host.span(), values);
    return true;
  }

  // As symmetric_eigen.
  template <class T>
  void orthonormalize_rows(matrix_view<T> a) const {
    host_buffer<T> on_host(a.size());
    copy(a.flat(), on_host.span());
    eigen_backend{}.orthonormalize_rows(matrix_view<T>(on_host.span().data(), a.shape()));
    copy(on_host.span(), a.flat());
  }

 private:
  template <class Body>
  void launch(const Body& body) const {
    context_->launch(body);
  }

  template <class... T, std::size_t... Index>
  static constexpr std::uint32_t written(std::index_sequence<Index...>) {
    return ((std::is_const_v<T> ? 0u : 1u << Index) | ...);
  }

  // out[i] = the sum of squares of row i.
  template <class T, class To>
  void add_squares(matrix_view<T> a, To* out) const {
    using body = cuda::block_sums<std::remove_const_t<T>>;
    const index_t each = body::blocks(a.cols());
    device_buffer<double> sums(context_, a.rows() * each);
    launch(body{a.data(), a.rows(), a.cols(), sums.span().data()});
    launch(cuda::ordered_sums<To>{sums.span().data(), each, out, a.rows()});
  }

  std::shared_ptr<cuda::context> context_;
};

static_assert(DecomposingBackend<cuda_backend>);
static_assert(ConvertingBackend<cuda_backend, bfloat16> &&
              ConvertingBackend<cuda_backend, float16>);

}  // namespace mfsdp::inline MFSDP_ABI
