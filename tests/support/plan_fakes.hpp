// Optimizers that only state costs, and the model shapes that the planner's figures are quoted for.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>

#include "mfsdp/concepts.hpp"
#include "mfsdp/spec.hpp"

namespace fakes {

// Momentum and five Newton-Schulz steps: on the short side m and the long side n of a matrix,
// 4 m^2 n + 2 m^3 each.
struct newton_schulz {
  static constexpr std::string_view name = "newton_schulz";
  static constexpr bool whole_matrix = true;
  [[nodiscard]] mfsdp::index_t flops(mfsdp::matrix_shape s) const {
    const mfsdp::index_t m = std::min(s.rows, s.cols);
    const mfsdp::index_t n = std::max(s.rows, s.cols);
    return 5 * (4 * m * m * n + 2 * m * m * m);
  }
  [[nodiscard]] std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape s) const {
    return {{{"momentum", s.elements()}}};
  }
  [[nodiscard]] mfsdp::index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
};

// Two moments, element by element.
struct two_moments {
  static constexpr std::string_view name = "two_moments";
  static constexpr bool whole_matrix = false;
  [[nodiscard]] mfsdp::index_t flops(mfsdp::matrix_shape s) const { return 12 * s.elements(); }
  [[nodiscard]] std::array<mfsdp::state_spec, 2> states(mfsdp::matrix_shape s) const {
    return {{{"first", s.elements()}, {"second", s.elements()}}};
  }
  [[nodiscard]] mfsdp::index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
};

// Matrices to the first, the rest to the second.
struct by_role {
  [[nodiscard]] std::tuple<newton_schulz, two_moments> members() const { return {}; }
  [[nodiscard]] std::size_t route(const mfsdp::tensor_spec& tensor) const {
    return tensor.role == mfsdp::tensor_role::matrix ? 0 : 1;
  }
};

struct llama_shape {
  int layers;
  mfsdp::index_t width, key_value, hidden, vocabulary;
  mfsdp::index_t head_norm = 0;  // width of the query and key norms, if any
};

inline constexpr llama_shape llama_3_8b{32, 4096, 1024, 14336, 128256};
inline constexpr llama_shape llama_3_70b{80, 8192, 1024, 28672, 128256};
inline constexpr llama_shape qwen3_8b{36, 4096, 1024, 12288, 151936, 128};

inline mfsdp::model_spec llama_spec(const llama_shape& s) {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("weight", {s.vocabulary, s.width});
  for (int layer = 0; layer < s.layers; ++layer) {
    auto unit = spec.unit(fmt::format("block.{}", layer));
    unit.vector("input_norm", s.width)
        .matrix("attention.q", s.width, s.width)
        .matrix("attention.k", s.key_value, s.width)
        .matrix("attention.v", s.key_value, s.width)
        .matrix("attention.o", s.width, s.width);
    if (s.head_norm > 0) unit.vector("q_norm", s.head_norm).vector("k_norm", s.head_norm);
    unit.vector("post_norm", s.width)
        .matrix("mlp.gate", s.hidden, s.width)
        .matrix("mlp.up", s.hidden, s.width)
        .matrix("mlp.down", s.width, s.hidden);
  }
  spec.unit("head").vector("norm", s.width).elementwise("weight", {s.vocabulary, s.width});
  return spec;
}

// GPT-2 124M: the fused projection is three matrices, the head is tied to the token table.
inline mfsdp::model_spec gpt2_spec() {
  constexpr mfsdp::index_t width = 768;
  mfsdp::model_spec spec;
  spec.unit("embedding")
      .elementwise("tokens", {50257, width})
      .elementwise("positions", {1024, width});
  for (int layer = 0; layer < 12; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .vector("norm_1.gain", width)
        .vector("norm_1.bias", width)
        .matrix("attention.qkv", 3 * width, width, {.row_groups = 3})
        .vector("attention.qkv_bias", 3 * width)
        .matrix("attention.out", width, width)
        .vector("attention.out_bias", width)
        .vector("norm_2.gain", width)
        .vector("norm_2.bias", width)
        .matrix("mlp.up", 4 * width, width)
        .vector("mlp.up_bias", 4 * width)
        .matrix("mlp.down", width, 4 * width)
        .vector("mlp.down_bias", width);
  }
  spec.unit("head")
      .vector("norm.gain", width)
      .vector("norm.bias", width)
      .tied("weight", "embedding.tokens");
  return spec;
}

}  // namespace fakes
