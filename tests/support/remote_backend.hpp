// Memory that the host cannot touch, without a device: what span() shows is mapped without any
// right, so that a look at it ends the program, and the members of the backend work on a second
// mapping. Only copy() takes memory of the host, too.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// Addresses that are shown, followed by as many that can be used. Pages are used once; those that
// are given back have no content any more.
class remote_memory {
 public:
  static std::byte* take(std::size_t bytes) {
    static std::atomic<std::size_t> used = 0;
    const std::size_t at = used.fetch_add(whole_pages(bytes) + page);
    if (at + whole_pages(bytes) + page > size) throw std::bad_alloc();
    return shown() + at;
  }
  static void give_back(std::byte* shown_at, std::size_t bytes) {
    (void)madvise(shown_at + size, whole_pages(bytes), MADV_DONTNEED);
  }
  static bool owns(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const auto first = reinterpret_cast<std::uintptr_t>(shown());
    return at >= first && at < first + size;
  }
  // Where the content is of what is shown at this address; memory of the host is where it is.
  template <class T>
  static T* usable(T* address) {
    return owns(address) ? address + size / sizeof(T) : address;
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t size = std::size_t{1} << 34;  // of addresses

  static std::size_t whole_pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }
  static std::byte* shown() {
    static std::byte* const all = [] {
      void* const both =
          mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (both == MAP_FAILED) throw std::bad_alloc();
      std::byte* const first = static_cast<std::byte*>(both);
      if (mprotect(first + size, size, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      return first;
    }();
    return all;
  }
};

// A span of either memory, as the host can use it.
template <class T>
std::span<T> usable(std::span<T> x) {
  return {remote_memory::usable(x.data()), x.size()};
}

// What another backend computes, bit for bit.
template <class Inner = mfsdp::eigen_backend>
class remote_backend {
  template <class T>
  using span_of = std::type_identity_t<std::span<T>>;
  template <class T>
  using view_of = std::type_identity_t<mfsdp::matrix_view<T>>;

 public:
  template <class T>
  class buffer {
   public:
    buffer() = default;
    explicit buffer(mfsdp::index_t elements)
        : size_(static_cast<std::size_t>(elements)),
          data_(reinterpret_cast<T*>(remote_memory::take(size_ * sizeof(T)))) {}
    buffer(buffer&& other) noexcept
        : size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
    buffer& operator=(buffer&& other) noexcept {
      buffer taken(std::move(other));
      std::swap(size_, taken.size_);
      std::swap(data_, taken.data_);
      return *this;
    }
    ~buffer() {
      if (data_ == nullptr) return;
      remote_memory::give_back(reinterpret_cast<std::byte*>(data_), size_ * sizeof(T));
    }

    std::span<T> span() { return {data_, size_}; }
    std::span<const T> span() const { return {data_, size_}; }

   private:
    std::size_t size_ = 0;
    T* data_ = nullptr;
  };

  template <class T>
  buffer<T> allocate(mfsdp::index_t elements) const {
    return buffer<T>(elements);
  }
  template <class T>
  void fill(std::span<T> x, std::type_identity_t<T> value) const {
    inner_.fill(here(x), value);
  }
  template <class T>
  void copy(span_of<const T> from, std::span<T> to) const {
    inner_.copy(usable(from), usable(to));
  }
  template <class T>
  void multiply(std::type_identity_t<T> alpha, view_of<const T> a, mfsdp::transpose op_a,
                view_of<const T> b, mfsdp::transpose op_b, std::type_identity_t<T> beta,
                view_of<const T> c, mfsdp::matrix_view<T> d) const {
    inner_.multiply(alpha, here(a), op_a, here(b), op_b, beta, here(c), here(d));
  }
  template <class T>
  void multiply_symmetric(std::type_identity_t<T> alpha, view_of<const T> a, mfsdp::transpose op_a,
                          view_of<const T> b, mfsdp::transpose op_b, std::type_identity_t<T> beta,
                          view_of<const T> c, mfsdp::matrix_view<T> d) const {
    inner_.multiply_symmetric(alpha, here(a), op_a, here(b), op_b, beta, here(c), here(d));
  }
  // A kernel goes to the device as its bytes.
  template <class Kernel, class... T>
  void transform(const Kernel& kernel, std::span<T>... x) const {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    inner_.transform(kernel, here(x)...);
  }
  template <class Kernel, class S, class... T>
  void transform_by_sum(const Kernel& kernel, std::span<S> summed, std::span<T>... x) const {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    inner_.transform_by_sum(kernel, here(summed), here(x)...);
  }
  template <class T>
  double sum_of_squares(std::span<T> x) const {
    return inner_.sum_of_squares(here(x));
  }
  template <class T>
  void row_sums_of_squares(mfsdp::matrix_view<T> a, std::span<std::remove_const_t<T>> sums) const {
    inner_.row_sums_of_squares(here(a), here(sums));
  }
  template <class T>
  void scale_rows(span_of<const T> factors, mfsdp::matrix_view<T> a) const {
    inner_.scale_rows(here(factors), here(a));
  }
  template <class T>
  bool symmetric_eigen(mfsdp::matrix_view<T> a, std::span<T> values) const {
    return inner_.symmetric_eigen(here(a), here(values));
  }
  template <class T>
  void orthonormalize_rows(mfsdp::matrix_view<T> a) const {
    inner_.orthonormalize_rows(here(a));
  }
  template <class T>
  void permute(view_of<const T> a, std::span<const mfsdp::index_t> rows,
               std::span<const mfsdp::index_t> cols, mfsdp::matrix_view<T> b) const {
    inner_.permute(here(a), rows, cols, here(b));
  }
  template <class From, class To>
  void convert(std::span<From> from, std::span<To> to) const {
    inner_.convert(here(from), here(to));
  }
  template <class T>
  void round_stochastically(span_of<const float> from, std::span<T> to, std::uint64_t key,
                            mfsdp::index_t first) const {
    inner_.round_stochastically(here(from), here(to), key, first);
  }

 private:
  // Errors: std::logic_error if it is memory of the host.
  template <class T>
  static std::span<T> here(std::span<T> x) {
    if (!x.empty() && !remote_memory::owns(x.data())) {
      throw std::logic_error("a member of remote_backend but copy() was given memory of the host");
    }
    return usable(x);
  }
  template <class T>
  static mfsdp::matrix_view<T> here(mfsdp::matrix_view<T> x) {
    return {here(x.flat()).data(), x.shape()};
  }

  Inner inner_{};
};

static_assert(!mfsdp::HostMemory<remote_backend<>> && mfsdp::HostMemory<mfsdp::eigen_backend>);
static_assert(mfsdp::DecomposingBackend<remote_backend<>>);
static_assert(mfsdp::ConvertingBackend<remote_backend<>, mfsdp::bfloat16>);

// An engine that reaches memory of both kinds, as one for a device does.
template <mfsdp::Collective C>
class remote_collective {
 public:
  using request = typename C::request;

  explicit remote_collective(C inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] remote_collective split(int color) {
    return remote_collective(inner_.split(color));
  }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const mfsdp::piece> pieces, std::string_view label) {
    return inner_.start_all_gather(usable(shard), usable(full), pieces, label);
  }
  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const mfsdp::piece> pieces, mfsdp::reduce_into into,
                               std::string_view label) {
    return inner_.start_reduce_scatter(usable(full), usable(shard), pieces, into, label);
  }
  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const mfsdp::piece> pieces, mfsdp::reduce_into into,
                           std::string_view label) {
    return inner_.start_all_reduce(usable(full), usable(local), pieces, into, label);
  }

 private:
  C inner_;
};

}  // namespace mfsdp_test
