// cuBLASLt: descriptors, algorithms, products.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "emulation/machine.hpp"
#include "emulation/product.hpp"

// What handles and descriptors hold; the library's own types say nothing.
struct cublasLtContext {
  int number = 0;
  int device = 0;
  bool destroyed = false;
};

namespace emulation {

namespace {

struct matmul_description : cublasLtMatmulDescOpaque_t {
  int number = 0;
  bool destroyed = false;
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  std::int32_t pointers = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t operation_a = CUBLAS_OP_N, operation_b = CUBLAS_OP_N;
};

struct layout_description : cublasLtMatrixLayoutOpaque_t {
  int number = 0;
  bool destroyed = false;
  matrix_layout layout;
};

struct preference_description : cublasLtMatmulPreferenceOpaque_t {
  int number = 0;
  bool destroyed = false;
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

struct {
  objects<cublasLtContext> handles;
  objects<matmul_description> descriptions;
  objects<layout_description> layouts;
  objects<preference_description> preferences;
} made;

const bool registered = [] {
  machine& m = the_machine();
  m.at_reset.push_back([] { made = {}; });
  m.leak_reports.push_back([](std::vector<std::string>& found) {
    const auto add = [&](const auto& all, std::string_view kind) {
      for (const auto& each : all) {
        if (!each->destroyed) found.push_back(fmt::format("leak: {} {}", kind, each->number));
      }
    };
    add(made.handles, "cuBLASLt handle");
    add(made.descriptions, "cuBLASLt operation descriptor");
    add(made.layouts, "cuBLASLt matrix layout");
    add(made.preferences, "cuBLASLt preference");
  });
  return true;
}();

template <class Body>
cublasStatus_t blas_call(const char* function, Body&& body) {
  return enter(function, CUBLAS_STATUS_EXECUTION_FAILED, std::forward<Body>(body));
}

cublasStatus_t invalid(const std::string& what) {
  return refuse(CUBLAS_STATUS_INVALID_VALUE, what);
}

cublasStatus_t unsupported(const std::string& what) {
  return refuse(CUBLAS_STATUS_NOT_SUPPORTED, what);
}

template <class T>
T* create(objects<T>& all) {
  T* const fresh = all.make();
  fresh->number = all.size();
  return fresh;
}

// A living object of ours behind what the program holds; null is reported.
template <class T, class Held>
T* living(const objects<T>& all, Held* held, std::string_view kind) {
  if (!all.knows(held)) {
    report(the_caller().function, fmt::format("no {} of this machine", kind));
    return nullptr;
  }
  T* const found = static_cast<T*>(held);
  if (!found->destroyed) return found;
  report(the_caller().function, fmt::format("{} {} was destroyed", kind, found->number));
  return nullptr;
}

template <class T, class Held>
cublasStatus_t destroy(const objects<T>& all, Held* held, std::string_view kind) {
  T* const found = living(all, held, kind);
  if (found == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  found->destroyed = true;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(T& value, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) {
    return invalid(fmt::format("the attribute takes {} bytes, not {}", sizeof(T), bytes));
  }
  std::memcpy(&value, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------- algorithms

// Faster ones cut the inner dimension and sum the parts in the workspace: the order of the sums, so
// the bits, depend on the algorithm. The heuristic does not name the fastest first.
struct algorithm {
  std::uint64_t workspace;
  double slowness;
  int parts;
};
constexpr algorithm algorithms[] = {
    {std::uint64_t{4} << 20, 1.5, 1}, {std::uint64_t{1} << 20, 1.0, 2}, {0, 2.0, 1}, {0, 1.2, 4}};

// What an algorithm that the heuristic gave is good for.
struct chosen_algorithm {
  std::uint64_t magic;
  std::uint64_t index;
  std::uint64_t problem;
  std::uint16_t alignment[4];
};
constexpr std::uint64_t chosen_magic = 0x656d756c61746564;
static_assert(sizeof(chosen_algorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::string describe(const matrix_layout& m) {
  return fmt::format("{} x {} of type {}, leading dimension {}{}, {} of them every {} elements",
                     m.rows, m.cols, static_cast<int>(m.type), m.leading,
                     m.row_major ? " of rows" : "", m.batch, m.stride);
}

std::uint64_t hash(const product& p, bool device_scalars) {
  std::string all = fmt::format("{}{}{}{}{}", p.transpose_a, p.transpose_b, p.double_arithmetic,
                                p.tf32, device_scalars);
  for (const matrix_layout* each : {&p.a, &p.b, &p.c, &p.d}) all += describe(*each);
  return std::hash<std::string>()(all);
}

// ------------------------------------------------------------------------------------ what is
// asked

std::string flaw(const matrix_layout& m) {
  if (m.rows == 0 || m.cols == 0) return "is empty";
  if (m.leading < static_cast<std::int64_t>(m.run())) {
    return fmt::format("has a leading dimension below its {}", m.row_major ? "columns" : "rows");
  }
  if (m.batch < 1) return "has no matrices";
  return "";
}

bool matches(const matrix_layout& m, std::uint64_t rows, std::uint64_t cols) {
  return m.rows == rows && m.cols == cols;
}

// The product that descriptors say; nothing if it is none, which is reported.
std::optional<product> asked(cublasLtMatmulDesc_t held, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                             cublasLtMatrixLayout_t d) {
  const char* const who = the_caller().function;
  const auto* const what = living(made.descriptions, held, "operation descriptor");
  if (what == nullptr) return {};
  product p;
  const struct {
    const char* name;
    cublasLtMatrixLayout_t held;
    matrix_layout& layout;
  } operands[] = {{"A", a, p.a}, {"B", b, p.b}, {"C", c, p.c}, {"D", d, p.d}};
  for (const auto& each : operands) {
    const auto* const found =
        living(made.layouts, each.held, fmt::format("layout of {}", each.name));
    if (found == nullptr) return {};
    each.layout = found->layout;
    if (const std::string wrong = flaw(each.layout); !wrong.empty()) {
      report(who, fmt::format("{} {}: {}", each.name, wrong, describe(each.layout)));
      return {};
    }
    if (each.layout.batch != p.a.batch) {
      report(who,
             fmt::format("{} matrices in {}, {} in A", each.layout.batch, each.name, p.a.batch));
      return {};
    }
  }
  p.transpose_a = what->operation_a != CUBLAS_OP_N;
  p.transpose_b = what->operation_b != CUBLAS_OP_N;
  p.double_arithmetic = what->compute == CUBLAS_COMPUTE_64F;
  p.tf32 = what->compute == CUBLAS_COMPUTE_32F_FAST_TF32;

  const std::uint64_t rows = p.transpose_a ? p.a.cols : p.a.rows;
  const std::uint64_t cols = p.transpose_b ? p.b.rows : p.b.cols;
  if ((p.transpose_b ? p.b.cols : p.b.rows) != p.inner() || !matches(p.c, rows, cols) ||
      !matches(p.d, rows, cols)) {
    report(who, fmt::format("the sizes do not fit: A {}{}, B {}{}, C {}, D {}", describe(p.a),
                            p.transpose_a ? " transposed" : "", describe(p.b),
                            p.transpose_b ? " transposed" : "", describe(p.c), describe(p.d)));
    return {};
  }
  const cudaDataType in = p.a.type, out = p.d.type;
  const bool half = in == CUDA_R_16BF || in == CUDA_R_16F;
  const bool types_fit = in == p.b.type && out == p.c.type &&
                         (p.double_arithmetic ? in == CUDA_R_64F && out == CUDA_R_64F
                                              : (in == CUDA_R_32F && out == CUDA_R_32F) ||
                                                    (half && (out == in || out == CUDA_R_32F)));
  if (!types_fit || what->scale != (p.double_arithmetic ? CUDA_R_64F : CUDA_R_32F)) {
    report(who,
           fmt::format("no product of types {} and {} to {} and {} with compute type {}, scale "
                       "type {}",
                       static_cast<int>(in), static_cast<int>(p.b.type), static_cast<int>(p.c.type),
                       static_cast<int>(out), static_cast<int>(what->compute),
                       static_cast<int>(what->scale)));
    return {};
  }
  if (p.d.batch > 1 && p.d.stride < static_cast<std::int64_t>(p.d.runs()) * p.d.leading) {
    report(who, fmt::format("the matrices of D overlap: {}", describe(p.d)));
    return {};
  }
  return p;
}

bool uses_device_scalars(cublasLtMatmulDesc_t held) {
  return static_cast<matmul_description*>(held)->pointers == CUBLASLT_POINTER_MODE_DEVICE;
}

// The bytes of an operand, each run by itself where something lies between them.
void add_accesses(std::vector<access>& all, const matrix_layout& m, const void* data, use how) {
  const std::int64_t element = static_cast<std::int64_t>(bytes_of(m.type));
  const std::int64_t run = static_cast<std::int64_t>(m.run()) * element;
  const std::int64_t runs = static_cast<std::int64_t>(m.runs());
  const std::int64_t matrices = m.stride == 0 ? 1 : m.batch;
  const char* const first = static_cast<const char*>(data);
  const bool dense = m.leading * element == run;
  if (dense && (matrices == 1 || m.stride * element == run * runs)) {
    all.push_back({first, static_cast<std::size_t>(run * runs * matrices), how});
    return;
  }
  for (std::int64_t batch = 0; batch < matrices; ++batch) {
    const char* const matrix = first + batch * m.stride * element;
    for (std::int64_t i = 0; i < (dense ? 1 : runs); ++i) {
      all.push_back({matrix + i * m.leading * element,
                     static_cast<std::size_t>(dense ? run * runs : run), how});
    }
  }
}

std::size_t span_of(const matrix_layout& m) {
  const std::int64_t last = static_cast<std::int64_t>(m.runs() - 1) * m.leading +
                            static_cast<std::int64_t>(m.run()) + (m.batch - 1) * m.stride;
  return static_cast<std::size_t>(last) * bytes_of(m.type);
}

bool overlap(const matrix_layout& x, const void* p, const matrix_layout& y, const void* q) {
  const char* const a = static_cast<const char*>(p);
  const char* const b = static_cast<const char*>(q);
  return a < b + span_of(y) && b < a + span_of(x);
}

double scalar(bool is_double, const void* at) {
  if (!is_double) return static_cast<double>(*static_cast<const float*>(at));
  return *static_cast<const double*>(at);
}

// The algorithm of a call; null if it does not fit, which is reported.
const algorithm* choose(const cublasLtMatmulAlgo_t* given, const product& p, bool device_scalars,
                        const void* const (&data)[4], std::size_t workspace) {
  const char* const who = the_caller().function;
  if (given == nullptr) {
    for (const algorithm& each : algorithms) {
      if (each.workspace <= workspace) return &each;
    }
    return nullptr;
  }
  chosen_algorithm chosen;
  std::memcpy(&chosen, given, sizeof(chosen));
  if (chosen.magic != chosen_magic) {
    report(who, "the algorithm is not from cublasLtMatmulAlgoGetHeuristic");
    return nullptr;
  }
  if (chosen.problem != hash(p, device_scalars)) {
    report(who, fmt::format("the algorithm was chosen for another product than A {}, B {}, D {}",
                            describe(p.a), describe(p.b), describe(p.d)));
    return nullptr;
  }
  for (std::size_t i = 0; i < 4; ++i) {
    if (reinterpret_cast<std::uintptr_t>(data[i]) % chosen.alignment[i] == 0) continue;
    report(who,
           fmt::format("{} lies at {}, but the algorithm was chosen for an alignment to {} bytes",
                       "ABCD"[i], data[i], chosen.alignment[i]));
    return nullptr;
  }
  const algorithm& found = algorithms[chosen.index];
  if (found.workspace > workspace) {
    report(who, fmt::format("the algorithm needs a workspace of {} bytes, not {}", found.workspace,
                            workspace));
    return nullptr;
  }
  return &found;
}

}  // namespace

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status the emulation does not list";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* result) {
  return blas_call("cublasLtCreate", [&](auto&) {
    *result = create(made.handles);
    (*result)->device = the_caller().device;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return blas_call("cublasLtDestroy",
                   [&](auto&) { return destroy(made.handles, handle, "handle"); });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* result, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return blas_call("cublasLtMatmulDescCreate", [&](auto&) {
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
        compute != CUBLAS_COMPUTE_32F_FAST_TF32 && compute != CUBLAS_COMPUTE_64F) {
      return unsupported(fmt::format("compute type {} is not emulated", static_cast<int>(compute)));
    }
    matmul_description* const fresh = create(made.descriptions);
    fresh->compute = compute;
    fresh->scale = scale;
    *result = fresh;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t held) {
  return blas_call("cublasLtMatmulDescDestroy",
                   [&](auto&) { return destroy(made.descriptions, held, "operation descriptor"); });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t held,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t bytes) {
  return blas_call("cublasLtMatmulDescSetAttribute", [&](auto&) {
    matmul_description* const what = living(made.descriptions, held, "operation descriptor");
    if (what == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_POINTER_MODE: {
        const cublasStatus_t status = set(what->pointers, from, bytes);
        if (what->pointers == CUBLASLT_POINTER_MODE_HOST ||
            what->pointers == CUBLASLT_POINTER_MODE_DEVICE) {
          return status;
        }
        return unsupported(fmt::format("pointer mode {} is not emulated", what->pointers));
      }
      case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(what->operation_a, from, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(what->operation_b, from, bytes);
      default:
        return unsupported(
            fmt::format("attribute {} is not emulated", static_cast<int>(attribute)));
    }
  });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* result, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t leading) {
  return blas_call("cublasLtMatrixLayoutCreate", [&](auto&) {
    if (type != CUDA_R_32F && type != CUDA_R_64F && type != CUDA_R_16F && type != CUDA_R_16BF) {
      return unsupported(fmt::format("type {} is not emulated", static_cast<int>(type)));
    }
    layout_description* const fresh = create(made.layouts);
    fresh->layout.type = type;
    fresh->layout.rows = rows;
    fresh->layout.cols = cols;
    fresh->layout.leading = leading;
    *result = fresh;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t held) {
  return blas_call("cublasLtMatrixLayoutDestroy",
                   [&](auto&) { return destroy(made.layouts, held, "matrix layout"); });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t held,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, size_t bytes) {
  return blas_call("cublasLtMatrixLayoutSetAttribute", [&](auto&) {
    layout_description* const what = living(made.layouts, held, "matrix layout");
    if (what == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
      case CUBLASLT_MATRIX_LAYOUT_ORDER: {
        std::int32_t order = 0;
        const cublasStatus_t status = set(order, from, bytes);
        what->layout.row_major = order == CUBLASLT_ORDER_ROW;
        if (order == CUBLASLT_ORDER_ROW || order == CUBLASLT_ORDER_COL) return status;
        return unsupported(fmt::format("order {} is not emulated", order));
      }
      case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(what->layout.rows, from, bytes);
      case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(what->layout.cols, from, bytes);
      case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(what->layout.leading, from, bytes);
      case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(what->layout.batch, from, bytes);
      case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(what->layout.stride, from, bytes);
      default:
        return unsupported(
            fmt::format("attribute {} is not emulated", static_cast<int>(attribute)));
    }
  });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* result) {
  return blas_call("cublasLtMatmulPreferenceCreate", [&](auto&) {
    *result = create(made.preferences);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t held) {
  return blas_call("cublasLtMatmulPreferenceDestroy",
                   [&](auto&) { return destroy(made.preferences, held, "preference"); });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t held,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  return blas_call("cublasLtMatmulPreferenceSetAttribute", [&](auto&) {
    preference_description* const what = living(made.preferences, held, "preference");
    if (what == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(what->workspace, from, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(what->reductions, from, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(what->alignment[0], from, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(what->alignment[1], from, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(what->alignment[2], from, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(what->alignment[3], from, bytes);
      default:
        return unsupported(
            fmt::format("attribute {} is not emulated", static_cast<int>(attribute)));
    }
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t held, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  return blas_call("cublasLtMatmulAlgoGetHeuristic", [&](auto&) {
    *found = 0;
    if (living(made.handles, handle, "handle") == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    const auto* const preference = living(made.preferences, held, "preference");
    const std::optional<product> p = asked(what, a, b, c, d);
    if (preference == nullptr || !p) return CUBLAS_STATUS_INVALID_VALUE;
    for (const std::uint32_t alignment : preference->alignment) {
      if (alignment == 0 || alignment > 4096 || (alignment & (alignment - 1)) != 0) {
        return invalid(fmt::format("an alignment to {} bytes", alignment));
      }
    }
    for (std::size_t i = 0; i < std::size(algorithms) && *found < wanted; ++i) {
      if (algorithms[i].workspace > preference->workspace) continue;
      if (algorithms[i].parts > 1 && preference->reductions == CUBLASLT_REDUCTION_SCHEME_NONE) {
        continue;
      }
      chosen_algorithm chosen{chosen_magic, i, hash(*p, uses_device_scalars(what)), {}};
      std::copy_n(preference->alignment, 4, chosen.alignment);
      cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
      result = {};
      std::memcpy(&result.algo, &chosen, sizeof(chosen));
      result.workspaceSize = algorithms[i].workspace;
      result.state = CUBLAS_STATUS_SUCCESS;
      result.wavesCount = 1;
    }
    return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* given,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  return blas_call("cublasLtMatmul", [&](auto&) {
    if (living(made.handles, handle, "handle") == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (check_current(stream) != cudaSuccess) return CUBLAS_STATUS_INVALID_VALUE;
    if (handle->device != stream->device) {
      return invalid(fmt::format("the handle is of device {}, and it is to run in {}",
                                 handle->device, emulation::describe(stream)));
    }
    std::optional<product> p = asked(what, a_layout, b_layout, c_layout, d_layout);
    if (!p || alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;

    const bool in_place = c == d && p->c == p->d;
    if (overlap(p->d, d, p->a, a) || overlap(p->d, d, p->b, b) ||
        (!in_place && overlap(p->d, d, p->c, c))) {
      return invalid("D overlaps an operand; it may only be C itself, in the same layout");
    }
    const bool device_scalars = uses_device_scalars(what);
    const algorithm* const chosen =
        choose(given, *p, device_scalars, {a, b, c, d}, workspace_bytes);
    if (chosen == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    p->parts = chosen->parts;
    if (chosen->workspace > 0 && reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
      return invalid("the workspace does not begin at a multiple of 256 bytes");
    }

    const bool is_double = p->double_arithmetic;
    operation multiplication;
    auto& accesses = multiplication.accesses;
    const double a_host = device_scalars ? 1 : scalar(is_double, alpha);
    const double b_host = device_scalars ? 1 : scalar(is_double, beta);
    if (a_host != 0) {
      add_accesses(accesses, p->a, a, use::read);
      add_accesses(accesses, p->b, b, use::read);
    }
    if (b_host != 0) add_accesses(accesses, p->c, c, device_scalars ? use::read_any : use::read);
    add_accesses(accesses, p->d, d, use::write);
    if (chosen->workspace > 0) accesses.push_back({workspace, chosen->workspace, use::write});
    if (device_scalars) {
      const std::size_t bytes = is_double ? sizeof(double) : sizeof(float);
      accesses.push_back({alpha, bytes, use::read});
      accesses.push_back({beta, bytes, use::read});
    }
    multiplication.name =
        shared_name(fmt::format("product {} x {} x {} in {}", p->d.rows, p->inner(), p->d.cols,
                                emulation::describe(stream)));
    multiplication.microseconds =
        chosen->slowness *
        (2 + 1e-6 * static_cast<double>(p->d.rows * p->inner() * p->d.cols) * p->d.batch);
    multiplication.counted = &counters::matmuls;
    multiplication.body = [=, p = *p](timeline&) {
      multiply(p, device_scalars ? scalar(is_double, view(alpha)) : a_host, view(a), view(b),
               device_scalars ? scalar(is_double, view(beta)) : b_host, view(c), view(d));
    };
    return issue(stream, std::move(multiplication)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                   : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}
