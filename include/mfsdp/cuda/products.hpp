// Matrix products by cuBLASLt. The only includer of cublasLt.h.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/dtype.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// Errors: device_error that names the call and the library's reason.
inline void require(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw device_error(fmt::format("{}: {} ({})", call, cublasLtGetStatusString(status),
                                 cublasLtGetStatusName(status)));
}

// Which of the algorithms that cuBLASLt proposes for a product is taken.
//   first     its own first choice: the same in every run and on every rank, given one library
//             version and one kind of GPU
//   fastest   of its first few, the one that is fastest when such a product is first asked for.
//   Another
//             run or rank may time another one, whose sums are in another order: equal calls of one
//             backend give equal bits, but two runs need not
enum class algorithm_choice : bool { first, fastest };

struct product_options {
  bool tf32 = false;  // products of float with 10 bits of fraction, on tensor cores
  algorithm_choice choice = algorithm_choice::first;
};

// What alpha and beta of a product of T are.
template <class T>
using product_scale = std::conditional_t<std::is_same_v<T, double>, double, float>;

// All that decides how a product is computed. Row-major d = alpha op(a) op(b) + beta c, d of m x n,
// inner size k.
struct product_key {
  cudaDataType_t type = CUDA_R_32F;
  transpose op_a = transpose::no;
  transpose op_b = transpose::no;
  index_t m = 0;
  index_t n = 0;
  index_t k = 0;
  std::array<std::uint32_t, 4> alignment{};  // of a, b, c, d, in bytes, at most 16
  bool in_place = false;                     // c is d
  bool scales_on_device = false;             // alpha and beta are read when the product runs
  friend auto operator<=>(const product_key&, const product_key&) = default;
};

// The products of one stream. Products of float are in full float unless the options say otherwise,
// those of 16-bit types are added in float and rounded once. Products run one after the other in
// one workspace. Calls from several threads are safe. Errors: device_error.
class products {
 public:
  // Of the current device. The pool outlives this.
  products(product_options options, memory_pool& pool) : options_(options), pool_(pool) {
    int device = 0;
    int major = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "cudaDeviceGetAttribute");
    workspace_bytes_ = std::size_t{major >= 9 ? 32u : 8u} << 20;
    cublasLtHandle_t fresh = nullptr;
    require(cublasLtCreate(&fresh), "cublasLtCreate");
    handle_.reset(fresh);
    workspace_ = pool_.take(workspace_bytes_);
  }
  products(const products&) = delete;
  products& operator=(const products&) = delete;
  ~products() { pool_.give(workspace_, workspace_bytes_); }

  [[nodiscard]] const product_options& options() const { return options_; }

  // alpha and beta are host pointers, or device pointers if the key says so. Sizes are positive.
  // The first product of a key asks for algorithms; with algorithm_choice::fastest it times them,
  // which blocks the host, unless the factors are on the device.
  void run(cudaStream_t stream, const product_key& key, const void* alpha, const void* a,
           const void* b, const void* beta, const void* c, void* d) {
    const operands with{stream, alpha, a, b, beta, c, d};
    require(run(plan_of(key, with), with), "cublasLtMatmul");
  }

  // The key of operands in memory.
  template <class T>
  [[nodiscard]] static product_key key_of(matrix_view<const T> a, transpose op_a,
                                          matrix_view<const T> b, transpose op_b, const T* c,
                                          matrix_view<T> d) {
    const index_t inner = op_a == transpose::no ? a.cols() : a.rows();
    return {type_of<T>(),
            op_a,
            op_b,
            d.rows(),
            d.cols(),
            inner,
            {alignment(a.data()), alignment(b.data()), alignment(c), alignment(d.data())},
            c == d.data()};
  }

 private:
  struct destroy {
    void operator()(cublasLtHandle_t old) const { (void)cublasLtDestroy(old); }
    void operator()(cublasLtMatmulDesc_t old) const { (void)cublasLtMatmulDescDestroy(old); }
    void operator()(cublasLtMatrixLayout_t old) const { (void)cublasLtMatrixLayoutDestroy(old); }
    void operator()(cublasLtMatmulPreference_t old) const {
      (void)cublasLtMatmulPreferenceDestroy(old);
    }
  };
  template <class Handle>
  using owner = std::unique_ptr<std::remove_pointer_t<Handle>, destroy>;

  struct operands {
    cudaStream_t stream;
    const void* alpha;
    const void* a;
    const void* b;
    const void* beta;
    const void* c;
    void* d;
  };

  // cuBLASLt stores by columns, so that a row-major matrix is its own transpose there: what it
  // computes is d^T = op(b)^T op(a)^T, with the operands exchanged and their operations kept. The
  // Gram matrix of rows, X X^T, becomes its preferred case of a transposed left operand.
  struct plan {
    owner<cublasLtMatmulDesc_t> description;
    owner<cublasLtMatrixLayout_t> left;   // b
    owner<cublasLtMatrixLayout_t> right;  // a
    owner<cublasLtMatrixLayout_t> out;    // c and d
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t place = 0;  // of the algorithm among the proposals
  };

  template <class T>
  static constexpr cudaDataType_t type_of() {
    if constexpr (std::is_same_v<T, float>) {
      return CUDA_R_32F;
    } else if constexpr (std::is_same_v<T, double>) {
      return CUDA_R_64F;
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      return CUDA_R_16BF;
    } else {
      static_assert(std::is_same_v<T, float16>,
                    "mfsdp: products are of float, double, bfloat16 or float16");
      return CUDA_R_16F;
    }
  }
  // No kernel needs more than 16 bytes, and equal shapes must not find other algorithms elsewhere
  // in memory.
  static std::uint32_t alignment(const void* p) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return static_cast<std::uint32_t>((address | 16) & ~((address | 16) - 1));
  }

  [[nodiscard]] cublasComputeType_t compute_type(cudaDataType_t type) const {
    if (type == CUDA_R_64F) return CUBLAS_COMPUTE_64F;
    return type == CUDA_R_32F && options_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }

  [[nodiscard]] static owner<cublasLtMatrixLayout_t> layout(cudaDataType_t type, index_t rows,
                                                            index_t cols) {
    cublasLtMatrixLayout_t fresh = nullptr;
    require(cublasLtMatrixLayoutCreate(&fresh, type, static_cast<std::uint64_t>(cols),
                                       static_cast<std::uint64_t>(rows), cols),
            "cublasLtMatrixLayoutCreate");
    return owner<cublasLtMatrixLayout_t>(fresh);
  }

  template <class Value>
  static void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                  Value value) {
    require(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
            "cublasLtMatmulDescSetAttribute");
  }
  template <class Value>
  static void set(cublasLtMatmulPreference_t preference,
                  cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    require(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
  }

  const plan& plan_of(const product_key& key, const operands& with) {
    const std::scoped_lock lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    plan fresh = describe(key);
    choose(fresh, key, with);
    return plans_.emplace(key, std::move(fresh)).first->second;
  }

  [[nodiscard]] plan describe(const product_key& key) const {
    plan fresh;
    cublasLtMatmulDesc_t description = nullptr;
    require(cublasLtMatmulDescCreate(&description, compute_type(key.type),
                                     key.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F),
            "cublasLtMatmulDescCreate");
    fresh.description.reset(description);
    const auto operation = [](transpose op) {
      return op == transpose::no ? CUBLAS_OP_N : CUBLAS_OP_T;
    };
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.op_b));
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.op_a));
    if (key.scales_on_device) {
      set(description, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    }
    const auto stored = [&](transpose op, index_t rows, index_t cols) {
      return op == transpose::no ? layout(key.type, rows, cols) : layout(key.type, cols, rows);
    };
    fresh.left = stored(key.op_b, key.k, key.n);
    fresh.right = stored(key.op_a, key.m, key.k);
    fresh.out = layout(key.type, key.m, key.n);
    return fresh;
  }

  void choose(plan& fresh, const product_key& key, const operands& with) {
    cublasLtMatmulPreference_t preference = nullptr;
    require(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const owner<cublasLtMatmulPreference_t> owned(preference);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<std::uint64_t>(workspace_bytes_));
    // Partial sums keep the type of the arithmetic: 16-bit products are rounded once.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[1]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[0]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[2]);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[3]);

    std::array<cublasLtMatmulHeuristicResult_t, 8> proposals{};
    int found = 0;
    require(cublasLtMatmulAlgoGetHeuristic(handle_.get(), fresh.description.get(), fresh.left.get(),
                                           fresh.right.get(), fresh.out.get(), fresh.out.get(),
                                           preference, static_cast<int>(proposals.size()),
                                           proposals.data(), &found),
            fmt::format("cublasLtMatmulAlgoGetHeuristic for {} x {} x {}", key.m, key.n, key.k));
    const auto usable = [&](std::size_t place) {
      return place < static_cast<std::size_t>(found) &&
             proposals[place].state == CUBLAS_STATUS_SUCCESS;
    };
    const auto take = [&](std::size_t place) {
      fresh.algorithm = proposals[place].algo;
      fresh.place = place;
    };
    std::size_t first = 0;
    while (first < proposals.size() && !usable(first)) ++first;
    if (first == proposals.size()) {
      throw device_error(
          fmt::format("cuBLASLt has no algorithm for a product {} x {} x {} (type {})", key.m,
                      key.n, key.k, static_cast<int>(key.type)));
    }
    take(first);
    if (options_.choice == algorithm_choice::first) return;
    if (key.scales_on_device) {  // what is recorded is what has been run
      product_key on_host = key;
      on_host.scales_on_device = false;
      const auto known = plans_.find(on_host);
      if (known != plans_.end() && usable(known->second.place)) take(known->second.place);
      return;
    }

    // Not into d, which may be c.
    const std::size_t bytes =
        static_cast<std::size_t>(key.m * key.n) * (key.type == CUDA_R_64F ? 8 : 4);
    void* const aside = pool_.take(bytes);
    operands timed = with;
    timed.d = aside;
    float least = std::numeric_limits<float>::infinity();
    plan trial = describe(key);
    for (std::size_t place = first; place < proposals.size(); ++place) {
      if (!usable(place)) continue;
      trial.algorithm = proposals[place].algo;
      const float time = milliseconds(trial, timed);
      if (time >= least) continue;
      least = time;
      take(place);
    }
    pool_.give(aside, bytes);
  }

  // Of a few products after a first one; infinite if the algorithm cannot do it after all.
  float milliseconds(const plan& trial, const operands& with) const {
    constexpr int repetitions = 5;
    const event before(cudaEventDefault);
    const event after(cudaEventDefault);
    cublasStatus_t status = run(trial, with);
    before.record(with.stream);
    for (int i = 0; i < repetitions && status == CUBLAS_STATUS_SUCCESS; ++i) {
      status = run(trial, with);
    }
    after.record(with.stream);
    after.wait();
    if (status != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
    return after.milliseconds_since(before);
  }

  [[nodiscard]] cublasStatus_t run(const plan& how, const operands& with) const {
    return cublasLtMatmul(handle_.get(), how.description.get(), with.alpha, with.b, how.left.get(),
                          with.a, how.right.get(), with.beta, with.c, how.out.get(), with.d,
                          how.out.get(), &how.algorithm, workspace_, workspace_bytes_, with.stream);
  }

  product_options options_;
  memory_pool& pool_;
  owner<cublasLtHandle_t> handle_;
  std::size_t workspace_bytes_ = 0;
  void* workspace_ = nullptr;
  std::mutex mutex_;
  std::map<product_key, plan> plans_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
