// The emulated cuBLASLt: what it computes, and each fault that it finds.
#include <cublasLt.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "mfsdp/dtype.hpp"

namespace {

using emulation::configuration, emulation::expect_error, emulation::session;
using mfsdp::bfloat16, mfsdp::float16;
using mfsdp::cuda::event, mfsdp::cuda::stream;

constexpr std::size_t workspace_bytes = std::size_t{8} << 20;

// A layout, with attributes beyond those of the constructor as the test wants them.
struct layout_handle {
  cublasLtMatrixLayout_t held = nullptr;
  layout_handle(cudaDataType type, std::uint64_t rows, std::uint64_t cols, std::int64_t leading) {
    REQUIRE(cublasLtMatrixLayoutCreate(&held, type, rows, cols, leading) == CUBLAS_STATUS_SUCCESS);
  }
  ~layout_handle() { cublasLtMatrixLayoutDestroy(held); }
  layout_handle(const layout_handle&) = delete;
  layout_handle& operator=(const layout_handle&) = delete;
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    REQUIRE(cublasLtMatrixLayoutSetAttribute(held, attribute, &value, sizeof(value)) ==
            CUBLAS_STATUS_SUCCESS);
  }
};

// Everything for products d = alpha a b + beta c of small matrices on one device.
struct matmul_setting {
  stream work;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t what = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  void* workspace = nullptr;
  std::vector<void*> memory;

  explicit matmul_setting(cublasComputeType_t compute = CUBLAS_COMPUTE_32F,
                          cudaDataType scale = CUDA_R_32F) {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&what, compute, scale) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, std::uint32_t{16});
    }
    REQUIRE(cudaMalloc(&workspace, workspace_bytes) == cudaSuccess);
    memory.push_back(workspace);
  }
  ~matmul_setting() {
    cudaDeviceSynchronize();
    for (void* each : memory) cudaFree(each);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(what);
    cublasLtDestroy(handle);
  }
  matmul_setting(const matmul_setting&) = delete;
  matmul_setting& operator=(const matmul_setting&) = delete;

  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    REQUIRE(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
            CUBLAS_STATUS_SUCCESS);
  }
  void describe(cublasLtMatmulDescAttributes_t attribute, std::int32_t value) {
    REQUIRE(cublasLtMatmulDescSetAttribute(what, attribute, &value, sizeof(value)) ==
            CUBLAS_STATUS_SUCCESS);
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, values.size() * sizeof(T)) == cudaSuccess);
    memory.push_back(data);
    REQUIRE(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                            work.get()) == cudaSuccess);
    return static_cast<T*>(data);
  }
  float* empty(std::size_t count) {
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, count * sizeof(float)) == cudaSuccess);
    memory.push_back(data);
    return static_cast<float*>(data);
  }
  template <class T>
  std::vector<T> take(const T* data, std::size_t count) const {
    std::vector<T> values(count);
    REQUIRE(cudaMemcpyAsync(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost,
                            work.get()) == cudaSuccess);
    return values;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(const layout_handle& a,
                                                          const layout_handle& b,
                                                          const layout_handle& c,
                                                          const layout_handle& d) const {
    std::vector<cublasLtMatmulHeuristicResult_t> found(8);
    int count = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, what, a.held, b.held, c.held, d.held, preference, 8,
                                   found.data(), &count);
    found.resize(static_cast<std::size_t>(count));
    return found;
  }
};

// The operands of one call; a test changes what is to be wrong with them.
struct matmul_call {
  const void* a;
  const layout_handle& a_layout;
  const void* b;
  const layout_handle& b_layout;
  const void* c;
  const layout_handle& c_layout;
  void* d;
  const layout_handle& d_layout;
  float alpha = 1, beta = 0;
  const cublasLtMatmulAlgo_t* algorithm = nullptr;
  std::size_t workspace = workspace_bytes;

  [[nodiscard]] cublasStatus_t run(const matmul_setting& in) const {
    return cublasLtMatmul(in.handle, in.what, &alpha, a, a_layout.held, b, b_layout.held, &beta, c,
                          c_layout.held, d, d_layout.held, algorithm, in.workspace, workspace,
                          in.work.get());
  }
};

}  // namespace

TEST_CASE("products of columns, with leading dimensions, transposes and a third matrix") {
  const session gpu;
  matmul_setting gemm;
  // a = [1 2; 3 4; 5 6] with leading dimension 4, b = [1 0 1; 0 1 1], in columns.
  const layout_handle a(CUDA_R_32F, 3, 2, 4), b(CUDA_R_32F, 2, 3, 2), d(CUDA_R_32F, 3, 3, 3);
  const float* const left = gemm.put(std::vector<float>{1, 3, 5, -1, 2, 4, 6, -1});
  const float* const right = gemm.put(std::vector<float>{1, 0, 0, 1, 1, 1});
  float* const result = gemm.put(std::vector<float>(9, 100));
  matmul_call call{left, a, right, b, result, d, result, d, 2, 1};
  CHECK(call.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(result, 9) == std::vector<float>{102, 106, 110, 104, 108, 112, 106, 114, 122});

  // a transposed times a.
  const layout_handle square(CUDA_R_32F, 2, 2, 2);
  gemm.describe(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  float* const gram = gemm.empty(4);
  const matmul_call symmetric{left, a, left, a, gram, square, gram, square};
  CHECK(symmetric.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(gram, 4) == std::vector<float>{35, 44, 44, 56});
  CHECK(emulation::counts().matmuls == 2);
}

TEST_CASE("rows instead of columns, and stacks of matrices") {
  const session gpu;
  matmul_setting gemm;
  layout_handle a(CUDA_R_32F, 1, 2, 2), b(CUDA_R_32F, 2, 1, 1), d(CUDA_R_32F, 1, 1, 1);
  for (layout_handle* each : {&a, &b, &d}) {
    each->set(CUBLASLT_MATRIX_LAYOUT_ORDER, std::int32_t{CUBLASLT_ORDER_ROW});
    each->set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{2});
  }
  a.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{2});
  d.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{1});
  const float* const left = gemm.put(std::vector<float>{1, 2, 3, 4});
  const float* const right = gemm.put(std::vector<float>{10, 1});  // the same for both
  float* const result = gemm.empty(2);
  matmul_call call{left, a, right, b, result, d, result, d};
  CHECK(call.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(result, 2) == std::vector<float>{12, 34});

  d.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{0});
  CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"the matrices of D overlap"});
  d.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{1});
  CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"1 matrices in C, 2 in A"});
}

TEST_CASE_TEMPLATE("16-bit factors are summed in float", Half, bfloat16, float16) {
  const session gpu;
  matmul_setting gemm;
  const cudaDataType type = std::is_same_v<Half, bfloat16> ? CUDA_R_16BF : CUDA_R_16F;
  const layout_handle a(type, 1, 8, 1), b(type, 8, 1, 8), same(type, 1, 1, 1),
      wide(CUDA_R_32F, 1, 1, 1);
  // 2048 + 7: only float holds it on the way.
  std::vector<Half> ones(8, Half(1.0f)), left = ones;
  left[0] = Half(2048.0f);
  const Half* const p = gemm.put(left);
  const Half* const q = gemm.put(ones);
  float* const exact = gemm.empty(1);
  Half* const rounded = gemm.put(std::vector<Half>{Half(0.0f)});
  CHECK(matmul_call{p, a, q, b, exact, wide, exact, wide}.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(matmul_call{p, a, q, b, rounded, same, rounded, same}.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(exact, 1)[0] == 2055);
  CHECK(gemm.take(rounded, 1)[0] == Half(2055.0f));
}

TEST_CASE("compute types: double, and float with factors of 10 bits") {
  const session gpu;
  {
    matmul_setting gemm(CUBLAS_COMPUTE_64F, CUDA_R_64F);
    const layout_handle one(CUDA_R_64F, 1, 1, 1);
    const double* const third = gemm.put(std::vector<double>{1.0 / 3});
    double* const result = gemm.put(std::vector<double>{0});
    const double alpha = 1, beta = 0;
    CHECK(cublasLtMatmul(gemm.handle, gemm.what, &alpha, third, one.held, third, one.held, &beta,
                         result, one.held, result, one.held, nullptr, nullptr, 0,
                         gemm.work.get()) == CUBLAS_STATUS_SUCCESS);
    CHECK(gemm.take(result, 1)[0] == (1.0 / 3) * (1.0 / 3));
  }
  for (const auto compute : {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32}) {
    matmul_setting gemm(compute);
    const layout_handle one(CUDA_R_32F, 1, 1, 1);
    const float* const value = gemm.put(std::vector<float>{1 + 0x1p-12f});
    const float* const unit = gemm.put(std::vector<float>{1});
    float* const result = gemm.empty(1);
    CHECK(matmul_call{value, one, unit, one, result, one, result, one}.run(gemm) ==
          CUBLAS_STATUS_SUCCESS);
    CHECK((gemm.take(result, 1)[0] == 1) == (compute == CUBLAS_COMPUTE_32F_FAST_TF32));
  }
}

TEST_CASE("sizes, leading dimensions and types that do not fit are refused") {
  const session gpu;
  matmul_setting gemm;
  const layout_handle a(CUDA_R_32F, 3, 2, 3), b(CUDA_R_32F, 2, 4, 2), d(CUDA_R_32F, 3, 4, 3);
  const layout_handle swapped(CUDA_R_32F, 3, 2, 2), halves(CUDA_R_16BF, 3, 2, 3);
  const layout_handle none(CUDA_R_32F, 0, 2, 1);
  const float* const left = gemm.put(std::vector<float>(6));
  const float* const right = gemm.put(std::vector<float>(8));
  float* const result = gemm.empty(12);
  const auto with_a = [&](const layout_handle& layout) {
    return matmul_call{left, layout, right, b, result, d, result, d}.run(gemm);
  };
  CHECK(with_a(a) == CUBLAS_STATUS_SUCCESS);
  CHECK(with_a(swapped) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"A has a leading dimension below its rows: 3 x 2"});
  CHECK(with_a(halves) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"no product of types"});
  CHECK(with_a(none) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"A is empty"});
  CHECK(with_a(b) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"the sizes do not fit"});
  gemm.describe(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  CHECK(with_a(a) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"the sizes do not fit", "transposed"});
}

TEST_CASE("the result overlaps no operand but the third in its own layout") {
  const session gpu;
  matmul_setting gemm;
  const layout_handle square(CUDA_R_32F, 2, 2, 2), apart(CUDA_R_32F, 2, 2, 3);
  float* const data = gemm.put(std::vector<float>(16, 1));
  float* const other = gemm.put(std::vector<float>(4, 1));
  const auto to = [&](float* d, float* c, const layout_handle& c_layout) {
    return matmul_call{data, square, other, square, c, c_layout, d, square, 1, 1}.run(gemm);
  };
  CHECK(to(data + 4, data + 4, square) == CUBLAS_STATUS_SUCCESS);
  CHECK(to(data + 4, data + 8, square) == CUBLAS_STATUS_SUCCESS);
  for (const auto status : {to(data, data + 8, square), to(data + 4, data + 4, apart),
                            to(data + 4, data + 6, square)}) {
    CHECK(status == CUBLAS_STATUS_INVALID_VALUE);
  }
  const auto errors = emulation::take_errors();
  REQUIRE(errors.size() == 3);
  CHECK(errors[0].find("D overlaps an operand") != std::string::npos);
}

TEST_CASE("the third matrix is read if its factor is not zero") {
  const session gpu;
  matmul_setting gemm;
  const layout_handle one(CUDA_R_32F, 1, 1, 1);
  const float* const two = gemm.put(std::vector<float>{2});
  float* const unwritten = gemm.empty(1);
  float* const result = gemm.empty(1);
  matmul_call call{two, one, two, one, unwritten, one, result, one};
  CHECK(call.run(gemm) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(result, 1)[0] == 4);
  CHECK_NO_DEVICE_ERRORS();
  call.beta = 1;
  CHECK(call.run(gemm) == CUBLAS_STATUS_SUCCESS);
  const float sum = gemm.take(result, 1)[0];
  CHECK(sum != sum);
  expect_error({"product 1 x 1 x 1", "not all of which have been written"});
}

TEST_CASE("factors in device memory are taken when the product is made") {
  const session gpu;
  matmul_setting gemm;
  gemm.describe(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  const layout_handle one(CUDA_R_32F, 1, 1, 1);
  const float* const two = gemm.put(std::vector<float>{2});
  float* const result = gemm.put(std::vector<float>{7});
  float* const factors = gemm.put(std::vector<float>{3, 1});
  const auto multiply = [&](const float* alpha, const float* beta) {
    return cublasLtMatmul(gemm.handle, gemm.what, alpha, two, one.held, two, one.held, beta, result,
                          one.held, result, one.held, nullptr, nullptr, 0, gemm.work.get());
  };
  CHECK(multiply(factors, factors + 1) == CUBLAS_STATUS_SUCCESS);
  CHECK(gemm.take(result, 1)[0] == 3 * 4 + 7);
  const float on_host = 1;
  CHECK(multiply(&on_host, factors + 1) == CUBLAS_STATUS_EXECUTION_FAILED);
  expect_error({"is not memory of a device, nor pinned"});
}

TEST_CASE("algorithms need what they were chosen for") {
  const session gpu;
  matmul_setting gemm;
  const layout_handle a(CUDA_R_32F, 4, 4, 4), wide(CUDA_R_32F, 4, 8, 4);
  float* const left = gemm.put(std::vector<float>(32, 1));
  float* const right = gemm.put(std::vector<float>(32, 1));
  float* const result = gemm.empty(64);
  const auto found = gemm.algorithms(a, a, a, a);
  REQUIRE(found.size() == 4);
  matmul_call call{left, a, right, a, result, a, result, a};

  SUBCASE("they differ in workspace and speed, and the first is not the fastest") {
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreateWithFlags(&begin, cudaEventDefault);
    cudaEventCreateWithFlags(&end, cudaEventDefault);
    std::vector<float> times;
    for (const auto& each : found) {
      call.algorithm = &each.algo;
      cudaEventRecord(begin, gemm.work.get());
      CHECK(call.run(gemm) == CUBLAS_STATUS_SUCCESS);
      cudaEventRecord(end, gemm.work.get());
      cudaEventSynchronize(end);
      cudaEventElapsedTime(&times.emplace_back(), begin, end);
    }
    CHECK(times[1] < times[0]);
    CHECK(found[0].workspaceSize > found[1].workspaceSize);
    CHECK(found[2].workspaceSize == 0);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  SUBCASE("an unaligned operand") {
    call.algorithm = &found[0].algo;
    call.b = right + 1;
    CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
    expect_error({"B lies at", "an alignment to 16 bytes"});
  }
  SUBCASE("too small a workspace") {
    call.algorithm = &found[1].algo;
    call.workspace = 1000;
    CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
    expect_error({"the algorithm needs a workspace of 1048576 bytes, not 1000"});
  }
  SUBCASE("another product") {
    call.algorithm = &found[0].algo;
    const matmul_call wider{left, a, right, wide, result, wide, result, wide, 1, 0, call.algorithm};
    CHECK(wider.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
    expect_error({"the algorithm was chosen for another product"});
  }
  SUBCASE("no algorithm of the heuristic") {
    const cublasLtMatmulAlgo_t blank{};
    call.algorithm = &blank;
    CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
    expect_error({"is not from cublasLtMatmulAlgoGetHeuristic"});
  }
  SUBCASE("the preference limits them") {
    gemm.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0});
    CHECK(gemm.algorithms(a, a, a, a).size() == 2);
    gemm.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    CHECK(gemm.algorithms(a, a, a, a).size() == 1);
  }
}

TEST_CASE("two streams cannot share a workspace without an order") {
  const session gpu;
  matmul_setting gemm;
  const stream other;
  const event ready;
  const layout_handle a(CUDA_R_32F, 4, 4, 4);
  float* const left = gemm.put(std::vector<float>(16, 1));
  float* const results = gemm.empty(32);
  ready.record(gemm.work.get());
  ready.precede(other.get());
  CHECK(matmul_call{left, a, left, a, results, a, results, a}.run(gemm) == CUBLAS_STATUS_SUCCESS);
  const float alpha = 1, beta = 0;
  CHECK(cublasLtMatmul(gemm.handle, gemm.what, &alpha, left, a.held, left, a.held, &beta,
                       results + 16, a.held, results + 16, a.held, nullptr, gemm.workspace,
                       workspace_bytes, other.get()) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  expect_error({"product 4 x 4 x 4 in stream 1", "product 4 x 4 x 4 in stream 2"});
}

TEST_CASE("handles and descriptors belong to their device and live until they are destroyed") {
  const session gpus(configuration{.devices = 2});
  matmul_setting gemm;
  const layout_handle one(CUDA_R_32F, 1, 1, 1);
  float* const value = gemm.put(std::vector<float>{1});
  float* const result = gemm.empty(1);
  const matmul_call call{value, one, value, one, result, one, result, one};
  CHECK(cudaSetDevice(1) == cudaSuccess);
  cublasLtHandle_t elsewhere = nullptr;
  CHECK(cublasLtCreate(&elsewhere) == CUBLAS_STATUS_SUCCESS);
  CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"stream 1 of device 0, but device 1 is current"});
  CHECK(cudaSetDevice(0) == cudaSuccess);
  std::swap(gemm.handle, elsewhere);
  CHECK(call.run(gemm) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"the handle is of device 1"});
  std::swap(gemm.handle, elsewhere);
  CHECK(emulation::leaks().size() == 9);
  CHECK(cublasLtDestroy(elsewhere) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasLtDestroy(elsewhere) == CUBLAS_STATUS_INVALID_VALUE);
  expect_error({"handle 2 was destroyed"});
}
