// A backend of one's own: docs/concepts/backend.md. Trains on it and on the one that comes with the
// library, and compares.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "mfsdp/mfsdp.hpp"

using mfsdp::index_t, mfsdp::matrix_view, mfsdp::transpose;

// [begin loop_backend]
// Host memory and plain loops.
struct loop_backend {
  static constexpr bool host_memory = true;

  template <class T>
  class buffer {
   public:
    buffer() = default;
    explicit buffer(index_t elements)
        : size_(static_cast<std::size_t>(elements)),
          data_(static_cast<T*>(::operator new(size_ * sizeof(T), alignment))) {}
    std::span<T> span() { return {data_.get(), data_ ? size_ : 0}; }
    std::span<const T> span() const { return {data_.get(), data_ ? size_ : 0}; }

   private:
    static constexpr std::align_val_t alignment{mfsdp::storage_alignment};
    struct release {
      void operator()(T* data) const { ::operator delete(data, alignment); }
    };
    std::size_t size_ = 0;
    std::unique_ptr<T[], release> data_;
  };

  template <class T>
  buffer<T> allocate(index_t elements) const {
    return buffer<T>(elements);
  }

  template <class T>
  void fill(std::span<T> x, std::type_identity_t<T> value) const {
    std::ranges::fill(x, value);
  }

  template <class T>
  void copy(std::type_identity_t<std::span<const T>> from, std::span<T> to) const {
    std::ranges::copy(from, to.begin());
  }

  template <class T>
  void multiply(std::type_identity_t<T> alpha, std::type_identity_t<matrix_view<const T>> a,
                transpose op_a, std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                std::type_identity_t<T> beta, std::type_identity_t<matrix_view<const T>> c,
                matrix_view<T> d) const {
    const auto at = [](const auto& m, transpose op, index_t i, index_t j) {
      return op == transpose::no ? m.data()[i * m.cols() + j] : m.data()[j * m.cols() + i];
    };
    const index_t inner = op_a == transpose::no ? a.cols() : a.rows();
    for (index_t i = 0; i < d.rows(); ++i) {
      for (index_t j = 0; j < d.cols(); ++j) {
        T sum = 0;
        for (index_t k = 0; k < inner; ++k) sum += at(a, op_a, i, k) * at(b, op_b, k, j);
        const index_t at_ij = i * d.cols() + j;
        d.data()[at_ij] = alpha * sum + (beta == 0 ? 0 : beta * c.data()[at_ij]);
      }
    }
  }

  template <class T>
  void multiply_symmetric(std::type_identity_t<T> alpha,
                          std::type_identity_t<matrix_view<const T>> a, transpose op_a,
                          std::type_identity_t<matrix_view<const T>> b, transpose op_b,
                          std::type_identity_t<T> beta,
                          std::type_identity_t<matrix_view<const T>> c, matrix_view<T> d) const {
    multiply<T>(alpha, a, op_a, b, op_b, beta, c, d);
  }

  template <class Kernel, class First, class... T>
  void transform(const Kernel& kernel, std::span<First> first, std::span<T>... x) const {
    for (std::size_t i = 0; i < first.size(); ++i) kernel(first[i], x[i]...);
  }

  template <class Kernel, class S, class... T>
  void transform_by_sum(const Kernel& kernel, std::span<S> summed, std::span<T>... x) const {
    const double sum = sum_of_squares(summed);
    transform([&](auto&... e) { kernel(sum, e...); }, x...);
  }

  template <class T>
  double sum_of_squares(std::span<T> x) const {
    double sum = 0;
    for (std::size_t from = 0; from < x.size(); from += mfsdp::block_elements) {
      double block = 0;
      for (const T e : x.subspan(from, std::min(mfsdp::block_elements, x.size() - from))) {
        block += static_cast<double>(e) * static_cast<double>(e);
      }
      sum += block;
    }
    return sum;
  }
};
// [end loop_backend]

// The gradient is the parameter itself; returns the norm of each step.
template <class Backend>
std::vector<double> train(Backend backend) {
  mfsdp::model_spec spec;
  spec.unit("layer").matrix("weight", 6, 4).vector("bias", 6);
  std::vector<double> norms;
  mfsdp::thread_world{2}.run([&](auto comm) {
    mfsdp::sharded_model model{spec,
                               comm,
                               mfsdp::owner_placement{},
                               mfsdp::mixed{mfsdp::muon{.learning_rate = 0.1}, mfsdp::adamw{}},
                               mfsdp::model_options{},
                               backend};
    model.initialize([](const auto&, std::span<float> values, index_t first) {
      for (float& value : values) value = static_cast<float>(first++ % 5);
    });
    for (int step = 0; step < 5; ++step) {
      {
        const auto weights = model.acquire(0, mfsdp::pass::backward);
        const auto gradients = model.gradients(0);
        for (const char* name : {"weight", "bias"}) gradients.put(name, weights[name].flat());
        gradients.reduce();
      }
      const double norm = model.clip(1.0);
      if (comm.rank() == 0) norms.push_back(norm);
      model.step();
    }
  });
  return norms;
}

int main() {
  const std::vector<double> norms = train(loop_backend{});
  const std::vector<double> reference = train(mfsdp::eigen_backend{});
  double difference = 0;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    std::printf("norm %.3f\n", norms[i]);
    difference = std::max(difference, std::abs(norms[i] / reference[i] - 1));
  }
  std::printf("loops and Eigen: %s\n", difference < 1e-5 ? "close" : "different");
}
