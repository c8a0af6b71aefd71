// Products of dense row-major matrices of float: packed, blocked by the sizes of the caches, by
// register tiles for AVX-512 or for AVX2 with FMA.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>
#include <new>

#include "mfsdp/concepts.hpp"

#if MFSDP_X86_64
#include <immintrin.h>
#endif

namespace mfsdp::inline MFSDP_ABI {

// The register tile that computes. Each gives the same bits: an element of a product is, for each
// block of the inner dimension in turn, one chain of fused multiply-adds s from zero, which ends in
//   d = fma(alpha, s, beta c)      in the first block, alpha s if beta is zero
//   d = fma(alpha, s, d)           in the others
// and the blocks depend on the inner size alone.
enum class product_kernel { none, avx2, avx512 };

// The fastest that this processor has.
[[nodiscard]] inline product_kernel best_product_kernel() {
#if MFSDP_X86_64
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return product_kernel::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return product_kernel::avx2;
#endif
  return product_kernel::none;
}

#if MFSDP_X86_64

namespace detail {

// What a block holds at most. A panel of the left operand stays in the first cache (12 KiB), all of
// its block in the second (288 KiB), the block of the right operand in the third (1.4 MiB). Deep
// blocks pass over d seldom. Multiples of the tiles' sides.
inline constexpr index_t block_depth = 384;
inline constexpr index_t block_rows = 192;
inline constexpr index_t block_cols = 960;

// A tile of d (rows x cols, whole): depth steps through a panel of each operand.
struct product_tile {
  index_t depth;
  const float* left;   // depth x rows
  const float* right;  // depth x cols
  float alpha;
  float beta;
  const float* c;  // read unless beta is zero
  index_t c_stride;
  float* d;
  index_t d_stride;
};

// 16 sums hide the latency of the multiply-add; 8 rows divide what models are made of.
struct avx512_kernel {
  static constexpr index_t rows = 8;
  static constexpr index_t cols = 32;

  __attribute__((target("avx512f"))) MFSDP_NOINLINE static void compute(const product_tile& tile) {
    __m512 sum[rows][2];
#pragma GCC unroll 8
    for (index_t i = 0; i < rows; ++i) {
      sum[i][0] = sum[i][1] = _mm512_setzero_ps();
      _mm_prefetch(reinterpret_cast<const char*>(tile.d + i * tile.d_stride), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(tile.d + i * tile.d_stride + 16), _MM_HINT_T0);
    }
    const float* left = tile.left;
    const float* right = tile.right;
    for (index_t p = 0; p < tile.depth; ++p, left += rows, right += cols) {
      const __m512 right_0 = _mm512_load_ps(right);
      const __m512 right_1 = _mm512_load_ps(right + 16);
#pragma GCC unroll 8
      for (index_t i = 0; i < rows; ++i) {
        const __m512 left_i = _mm512_set1_ps(left[i]);
        sum[i][0] = _mm512_fmadd_ps(left_i, right_0, sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(left_i, right_1, sum[i][1]);
      }
    }
    const __m512 alpha = _mm512_set1_ps(tile.alpha);
    const __m512 beta = _mm512_set1_ps(tile.beta);
    const bool adds = tile.beta != 0;
    const float* c = tile.c;
    float* d = tile.d;
#pragma GCC unroll 8
    for (index_t i = 0; i < rows; ++i, c += tile.c_stride, d += tile.d_stride) {
#pragma GCC unroll 2
      for (index_t j = 0; j < 2; ++j) {
        const __m512 value = adds
                                 ? _mm512_fmadd_ps(alpha, sum[i][j],
                                                   _mm512_mul_ps(beta, _mm512_loadu_ps(c + 16 * j)))
                                 : _mm512_mul_ps(alpha, sum[i][j]);
        _mm512_storeu_ps(d + 16 * j, value);
      }
    }
  }
};

// 12 sums, three parts of a row of the right operand and one element of the left: all 16 registers.
struct avx2_kernel {
  static constexpr index_t rows = 4;
  static constexpr index_t cols = 24;

  __attribute__((target("avx2,fma"))) MFSDP_NOINLINE static void compute(const product_tile& tile) {
    __m256 sum[rows][3];
#pragma GCC unroll 4
    for (index_t i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = sum[i][2] = _mm256_setzero_ps();
    const float* left = tile.left;
    const float* right = tile.right;
    for (index_t p = 0; p < tile.depth; ++p, left += rows, right += cols) {
      __m256 right_0 = _mm256_load_ps(right);
      __m256 right_1 = _mm256_load_ps(right + 8);
      __m256 right_2 = _mm256_load_ps(right + 16);
      // Kept in registers; GCC would load them again for each use.
      asm("" : "+x"(right_0), "+x"(right_1), "+x"(right_2));
#pragma GCC unroll 4
      for (index_t i = 0; i < rows; ++i) {
        const __m256 left_i = _mm256_broadcast_ss(left + i);
        sum[i][0] = _mm256_fmadd_ps(left_i, right_0, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(left_i, right_1, sum[i][1]);
        sum[i][2] = _mm256_fmadd_ps(left_i, right_2, sum[i][2]);
      }
    }
    const __m256 alpha = _mm256_set1_ps(tile.alpha);
    const __m256 beta = _mm256_set1_ps(tile.beta);
    const bool adds = tile.beta != 0;
    const float* c = tile.c;
    float* d = tile.d;
#pragma GCC unroll 4
    for (index_t i = 0; i < rows; ++i, c += tile.c_stride, d += tile.d_stride) {
#pragma GCC unroll 3
      for (index_t j = 0; j < 3; ++j) {
        const __m256 value = adds ? _mm256_fmadd_ps(alpha, sum[i][j],
                                                    _mm256_mul_ps(beta, _mm256_loadu_ps(c + 8 * j)))
                                  : _mm256_mul_ps(alpha, sum[i][j]);
        _mm256_storeu_ps(d + 8 * j, value);
      }
    }
  }
};

// An operand as the packing sees it: lines (rows of the left one, columns of the right one) along
// the inner dimension. One of the strides is 1.
struct product_operand {
  const float* data;
  index_t line_stride;
  index_t inner_stride;

  [[nodiscard]] const float* at(index_t line, index_t p) const {
    return data + line * line_stride + p * inner_stride;
  }
};

// to[p][0..3] = element p of four lines, for 4 p.
inline void transpose_4x4(const float* from, index_t from_stride, float* to, index_t to_stride) {
  __m128 r0 = _mm_loadu_ps(from);
  __m128 r1 = _mm_loadu_ps(from + from_stride);
  __m128 r2 = _mm_loadu_ps(from + 2 * from_stride);
  __m128 r3 = _mm_loadu_ps(from + 3 * from_stride);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  _mm_storeu_ps(to, r0);
  _mm_storeu_ps(to + to_stride, r1);
  _mm_storeu_ps(to + 2 * to_stride, r2);
  _mm_storeu_ps(to + 3 * to_stride, r3);
}

// Lays out lines in panels of `width`, to[panel][p][line], with zeros for lines that do not exist.
template <index_t width>
void pack(const product_operand& from, index_t lines, index_t depth, float* to) {
  static_assert(width % 4 == 0);
  for (index_t first = 0; first < lines; first += width, to += width * depth) {
    const index_t count = std::min(width, lines - first);
    if (from.inner_stride != 1) {
      for (index_t p = 0; p < depth; ++p) {
        const float* const x = from.at(first, p);
        float* const row = to + p * width;
        if (count == width) {
          std::copy_n(x, width, row);
        } else {
          std::fill(std::copy_n(x, count, row), row + width, 0.0f);
        }
      }
      continue;
    }
    // Sixteen elements of a line are a cache line, which is used up before the next is touched.
    constexpr index_t strip = 16;
    for (index_t begin = 0; begin < depth; begin += strip) {
      const index_t end = std::min(begin + strip, depth);
      for (index_t line = 0; line < width; line += 4) {
        index_t p = begin;
        if (line + 4 <= count) {
          for (; p + 4 <= end; p += 4) {
            transpose_4x4(from.at(first + line, p), from.line_stride, to + p * width + line, width);
          }
        }
        for (; p < end; ++p) {
          for (index_t i = line; i < line + 4; ++i) {
            to[p * width + i] = i < count ? *from.at(first + i, p) : 0.0f;
          }
        }
      }
    }
  }
}

// Both packed operands' memory, one for each thread.
[[nodiscard]] inline float* packing_buffer() {
  constexpr std::size_t size =
      static_cast<std::size_t>(block_depth * (block_rows + block_cols)) * sizeof(float);
  constexpr std::align_val_t alignment{storage_alignment};
  struct release {
    void operator()(float* p) const { ::operator delete(p, alignment); }
  };
  thread_local const std::unique_ptr<float[], release> buffer(
      static_cast<float*>(::operator new(size, alignment)));
  return buffer.get();
}

// Blocks of equal size, but for rounding, of at most `most` elements.
[[nodiscard]] constexpr index_t block_of(index_t total, index_t most, index_t unit) {
  const index_t blocks = (total + most - 1) / most;
  return blocks == 0 ? unit : round_up((total + blocks - 1) / blocks, unit);
}

// A tile that reaches beyond the end of d is computed in a buffer.
template <class Kernel>
void compute_edge(product_tile tile, index_t rows, index_t cols) {
  alignas(storage_alignment) std::array<float, Kernel::rows * Kernel::cols> whole{};
  float* const d = tile.d;
  if (tile.beta != 0) {
    for (index_t i = 0; i < rows; ++i) {
      std::copy_n(tile.c + i * tile.c_stride, cols, whole.data() + i * Kernel::cols);
    }
  }
  const index_t d_stride = tile.d_stride;
  tile.c = tile.d = whole.data();
  tile.c_stride = tile.d_stride = Kernel::cols;
  Kernel::compute(tile);
  for (index_t i = 0; i < rows; ++i) {
    std::copy_n(whole.data() + i * Kernel::cols, cols, d + i * d_stride);
  }
}

// d (m x n) = alpha left right + beta c over an inner size k; with lower_only, tiles above the
// diagonal stay as they are.
template <class Kernel>
void packed_product(bool lower_only, index_t k, float alpha, const product_operand& left,
                    const product_operand& right, float beta, const float* c,
                    matrix_view<float> d) {
  static_assert(block_rows % Kernel::rows == 0 && block_cols % Kernel::cols == 0);
  float* const packed_left = packing_buffer();
  float* const packed_right = packed_left + block_rows * block_depth;
  if (beta == 0) c = d.data();  // is not read, and may be nothing
  const index_t m = d.rows();
  const index_t n = d.cols();
  const index_t step_m = block_of(m, block_rows, Kernel::rows);
  const index_t step_n = block_of(n, block_cols, Kernel::cols);
  const index_t step_k = block_of(k, block_depth, 1);
  for (index_t j0 = 0; j0 < n; j0 += step_n) {
    const index_t cols = std::min(step_n, n - j0);
    // An empty inner dimension is one block of no depth: d = beta c.
    for (index_t k0 = 0; k0 == 0 || k0 < k; k0 += step_k) {
      const index_t depth = std::min(step_k, k - k0);
      pack<Kernel::cols>({right.at(j0, k0), right.line_stride, right.inner_stride}, cols, depth,
                         packed_right);
      for (index_t i0 = lower_only ? j0 / step_m * step_m : 0; i0 < m; i0 += step_m) {
        const index_t rows = std::min(step_m, m - i0);
        pack<Kernel::rows>({left.at(i0, k0), left.line_stride, left.inner_stride}, rows, depth,
                           packed_left);
        for (index_t j = 0; j < cols; j += Kernel::cols) {
          for (index_t i = 0; i < rows; i += Kernel::rows) {
            if (lower_only && i0 + i + Kernel::rows <= j0 + j) continue;
            const index_t at = (i0 + i) * n + j0 + j;
            const product_tile tile{
                depth, packed_left + i * depth, packed_right + j * depth,
                alpha, k0 == 0 ? beta : 1,      k0 == 0 ? c + at : d.data() + at,
                n,     d.data() + at,           n};
            if (i + Kernel::rows <= rows && j + Kernel::cols <= cols) {
              Kernel::compute(tile);
            } else {
              compute_edge<Kernel>(tile, std::min(Kernel::rows, rows - i),
                                   std::min(Kernel::cols, cols - j));
            }
          }
        }
      }
    }
  }
}

inline void packed_product(product_kernel kernel, bool lower_only, float alpha,
                           matrix_view<const float> a, transpose op_a, matrix_view<const float> b,
                           transpose op_b, float beta, matrix_view<const float> c,
                           matrix_view<float> d) {
  const bool flip_a = op_a == transpose::yes;
  const bool flip_b = op_b == transpose::yes;
  const index_t k = flip_a ? a.rows() : a.cols();
  assert((flip_a ? a.cols() : a.rows()) == d.rows());
  assert((flip_b ? b.rows() : b.cols()) == d.cols());
  assert((flip_b ? b.cols() : b.rows()) == k);
  assert(beta == 0 || c.shape() == d.shape());
  const product_operand left{a.data(), flip_a ? 1 : a.cols(), flip_a ? a.cols() : 1};
  const product_operand right{b.data(), flip_b ? b.cols() : 1, flip_b ? 1 : b.cols()};
  switch (kernel) {
    case product_kernel::avx512:
      return packed_product<avx512_kernel>(lower_only, k, alpha, left, right, beta, c.data(), d);
    case product_kernel::avx2:
      return packed_product<avx2_kernel>(lower_only, k, alpha, left, right, beta, c.data(), d);
    case product_kernel::none:
      assert(!"a kernel that this processor has");
  }
}

// Copies the lower triangle over the upper one. Blocks pass through a buffer, since rows of a
// matrix whose width is a power of two compete for the same few lines of the cache.
inline void mirror_lower(matrix_view<float> d) {
  constexpr index_t block = 32;
  alignas(storage_alignment) std::array<float, block * block> transposed;
  const index_t n = d.rows();
  float* const x = d.data();
  for (index_t i0 = 0; i0 < n; i0 += block) {
    const bool whole = i0 + block <= n;
    for (index_t j0 = 0; whole && j0 < i0; j0 += block) {
      for (index_t i = 0; i < block; i += 4) {
        for (index_t j = 0; j < block; j += 4) {
          transpose_4x4(x + (i0 + i) * n + j0 + j, n, transposed.data() + j * block + i, block);
        }
      }
      for (index_t j = 0; j < block; ++j) {
        std::copy_n(transposed.data() + j * block, block, x + (j0 + j) * n + i0);
      }
    }
    for (index_t i = i0; i < std::min(i0 + block, n); ++i) {
      for (index_t j = whole ? i0 : 0; j < i; ++j) x[j * n + i] = x[i * n + j];
    }
  }
}

}  // namespace detail

#else

namespace detail {

// Without kernels nothing calls these.
inline void packed_product(product_kernel, bool, float, matrix_view<const float>, transpose,
                           matrix_view<const float>, transpose, float, matrix_view<const float>,
                           matrix_view<float>) {
  assert(!"a kernel that this processor has");
}
inline void mirror_lower(matrix_view<float>) {}

}  // namespace detail

#endif

// d = alpha op(a) op(b) + beta c, where d (m x n) is c or apart from it, and apart from op(a)
// (m x k) and op(b) (k x n); beta = 0 does not read c, k = 0 gives beta c. No alignment matters, to
// no bit. The kernel is one that this processor has. 2 m n k operations; packs into memory that
// each thread allocates at its first product. Errors: std::bad_alloc, then. Source: Goto & van de
// Geijn 2008; Van Zee & van de Geijn 2015 (BLIS).
inline void packed_product(product_kernel kernel, float alpha, matrix_view<const float> a,
                           transpose op_a, matrix_view<const float> b, transpose op_b, float beta,
                           matrix_view<const float> c, matrix_view<float> d) {
  detail::packed_product(kernel, false, alpha, a, op_a, b, op_b, beta, c, d);
}

// The same where c and d are symmetric: about half of the operations. Elements on and below the
// diagonal have the bits of packed_product, those above are copies.
inline void packed_product_symmetric(product_kernel kernel, float alpha, matrix_view<const float> a,
                                     transpose op_a, matrix_view<const float> b, transpose op_b,
                                     float beta, matrix_view<const float> c, matrix_view<float> d) {
  assert(d.rows() == d.cols());
  detail::packed_product(kernel, true, alpha, a, op_a, b, op_b, beta, c, d);
  detail::mirror_lower(d);
}

}  // namespace mfsdp::inline MFSDP_ABI
