// A decoder-only transformer with a hand-written backward pass: pre-norm RMSNorm with gains, rotary
// positions, causal attention, ReLU^2 MLP, untied head.
//
// The model owns activations only. Parameters and gradients come in one unit at a time (the
// embedding, each block, the head), so that a sharding runtime can gather a unit just before it is
// used and reduce its gradients just after; no parameter pointer outlives the call it came with.
//
// Matrices are row-major [outputs, inputs]. Gradients are written, never added: what the tensors
// held before does not matter. Results repeat bit by bit, wherever the tensors lie, as long as each
// is 64-byte aligned.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace train_gpt {

struct transformer_shape {
  int layers = 4;
  int heads = 4;
  int width = 128;
  int context = 128;
  int vocabulary = 0;

  int head_width() const { return width / heads; }
  int mlp_width() const { return 4 * width; }
};

// With C = width, F = mlp_width, V = vocabulary:
template <class Pointer>
struct embedding_tensors {
  Pointer tokens;  // [V, C]
};

template <class Pointer>
struct block_tensors {
  Pointer norm1;  // [C]
  Pointer qkv;    // [3C, C]: the query, key and value matrices, one below the other
  Pointer out;    // [C, C]
  Pointer norm2;  // [C]
  Pointer up;     // [F, C]
  Pointer down;   // [C, F]
};

template <class Pointer>
struct head_tensors {
  Pointer norm;    // [C]
  Pointer output;  // [V, C]
};

template <class T>
using embedding_parameters = embedding_tensors<const T*>;
template <class T>
using embedding_gradients = embedding_tensors<T*>;
template <class T>
using block_parameters = block_tensors<const T*>;
template <class T>
using block_gradients = block_tensors<T*>;
template <class T>
using head_parameters = head_tensors<const T*>;
template <class T>
using head_gradients = head_tensors<T*>;

// Six per matrix parameter (the embedding is a look-up) and causal attention counted at half. The
// scores recomputed by the backward pass are an implementation's choice and are left out.
inline double training_flops_per_token(const transformer_shape& shape) {
  const double layers = shape.layers, width = shape.width;
  const double block_matrices = width * (4 * width + 2.0 * shape.mlp_width());
  const double matrices = layers * block_matrices + width * shape.vocabulary;
  return 6 * matrices + 6 * layers * shape.context * width;
}

// The initial value of any element of a tensor as a pure function of (seed, name, index), so that
// every rank can fill its own slice and the model does not depend on how tensors are cut.
// Names are those of the units and their members: "embedding.tokens", "block.3.qkv", "head.norm".
class initial_values {
 public:
  initial_values(const transformer_shape& shape, std::string_view tensor, std::uint64_t seed)
      : key_(mix(seed)) {
    for (const char c : tensor) key_ = mix(key_ ^ static_cast<unsigned char>(c));
    const std::string_view member = tensor.substr(tensor.rfind('.') + 1);
    if (member == "norm" || member == "norm1" || member == "norm2") {
      mean_ = 1;
    } else if (member == "tokens" || member == "output") {
      deviation_ = 0.02;
    } else if (member == "qkv" || member == "up") {
      deviation_ = 1 / std::sqrt(static_cast<double>(shape.width));
    } else if (member != "out" && member != "down") {  // zero: every block starts as the identity
      throw std::invalid_argument("initial_values: unknown tensor '" + std::string(tensor) + "'");
    }
  }

  double operator()(std::uint64_t element) const {
    if (deviation_ == 0) return mean_;
    const double radius = std::sqrt(-2 * std::log(uniform(2 * element)));
    const double angle = 2 * std::numbers::pi * uniform(2 * element + 1);
    return mean_ + deviation_ * radius * std::cos(angle);
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  double uniform(std::uint64_t counter) const {  // in (0, 1]: its logarithm is finite
    return static_cast<double>((mix(key_ + counter * 0x9e3779b97f4a7c15) >> 11) + 1) * 0x1p-53;
  }

  std::uint64_t key_;
  double mean_ = 0;
  double deviation_ = 0;
};

// One pass is embed_forward, block_forward for layers 0, 1, ..., then either head_loss or
// head_logits; after head_loss may follow head_backward, block_backward for the layers in reverse,
// embed_backward.
template <class T>
class transformer {
 public:
  transformer(const transformer_shape& shape, int sequences)
      : shape_(checked(shape, sequences)),
        sequences_(sequences),
        rows_(index_t{sequences} * shape.context),
        score_scale_(T(1) / std::sqrt(static_cast<T>(shape.head_width()))),
        tokens_(static_cast<std::size_t>(rows_)),
        stream_(static_cast<std::size_t>(shape.layers) + 1, matrix(rows_, shape.width)),
        blocks_(static_cast<std::size_t>(shape.layers)),
        final_normed_(rows_, shape.width),
        final_scale_(rows_),
        logits_(rows_, shape.vocabulary),
        d_stream_(rows_, shape.width),
        d_narrow_(rows_, shape.width),
        d_wide_(rows_, shape.mlp_width()),
        scores_(std::min(query_rows, shape.context), shape.context),
        d_scores_(scores_.rows(), scores_.cols()),
        cosine_(shape.context, shape.head_width() / 2),
        sine_(cosine_.rows(), cosine_.cols()),
        rotated_(cosine_.rows(), cosine_.cols()) {
    for (block_activations& block : blocks_) {
      for (matrix* narrow : {&block.normed1, &block.attended, &block.middle, &block.normed2}) {
        narrow->resize(rows_, shape.width);
      }
      block.qkv.resize(rows_, 3 * shape.width);
      block.hidden.resize(rows_, shape.mlp_width());
      block.lse.resize(rows_, shape.heads);
      block.scale1.resize(rows_);
      block.scale2.resize(rows_);
    }
    for (index_t position = 0; position < cosine_.rows(); ++position) {
      for (index_t i = 0; i < cosine_.cols(); ++i) {
        const double depth = static_cast<double>(i) / static_cast<double>(cosine_.cols());
        const double angle = static_cast<double>(position) * std::pow(10000.0, -depth);
        cosine_(position, i) = static_cast<T>(std::cos(angle));
        sine_(position, i) = static_cast<T>(std::sin(angle));
      }
    }
  }

  const transformer_shape& shape() const { return shape_; }
  int sequences() const { return sequences_; }

  // One sequence after the other. Fewer tokens than sequences * context are padded at the end,
  // where no earlier position of a causal model looks: a prompt may be shorter than the context.
  void embed_forward(const embedding_parameters<T>& p, std::span<const std::uint8_t> tokens) {
    if (tokens.size() > tokens_.size()) throw std::invalid_argument("transformer: too many tokens");
    check_vocabulary(tokens);
    std::fill(std::copy(tokens.begin(), tokens.end(), tokens_.begin()), tokens_.end(), 0);
    const auto table = weights(p.tokens, shape_.vocabulary, shape_.width);
    for (index_t i = 0; i < rows_; ++i) stream_[0].row(i) = table.row(token(i));
  }

  void block_forward(int layer, const block_parameters<T>& p) {
    const index_t width = shape_.width, mlp_width = shape_.mlp_width();
    block_activations& block = blocks_.at(static_cast<std::size_t>(layer));
    const matrix& input = stream_[static_cast<std::size_t>(layer)];
    matrix& output = stream_[static_cast<std::size_t>(layer) + 1];

    normalize(input, p.norm1, block.scale1, block.normed1);
    block.qkv.noalias() = block.normed1 * weights(p.qkv, 3 * width, width).transpose();
    rotate(block.qkv, T(1));
    attend(block);
    block.middle = input;
    block.middle.noalias() += block.attended * weights(p.out, width, width).transpose();

    normalize(block.middle, p.norm2, block.scale2, block.normed2);
    block.hidden.noalias() = block.normed2 * weights(p.up, mlp_width, width).transpose();
    block.hidden = block.hidden.array().max(T(0)).square();
    output = block.middle;
    output.noalias() += block.hidden * weights(p.down, width, mlp_width).transpose();
  }

  // The sum of the cross-entropies of this model's positions, in nats. `gradient_scale`, one over
  // the number of positions of the whole batch on all ranks, makes the gradients those of the mean.
  double head_loss(const head_parameters<T>& p, std::span<const std::uint8_t> targets,
                   double gradient_scale = 1) {
    if (targets.size() != tokens_.size()) {
      throw std::invalid_argument("transformer: one target per position expected");
    }
    check_vocabulary(targets);
    normalize(stream_.back(), p.norm, final_scale_, final_normed_);
    const auto output = weights(p.output, shape_.vocabulary, shape_.width);
    logits_.noalias() = final_normed_ * output.transpose();
    double loss = 0;
    for (index_t i = 0; i < rows_; ++i) {  // leaves d loss / d logits where the logits were
      auto row = logits_.row(i).array();
      const index_t target = targets[static_cast<std::size_t>(i)];
      row -= row.maxCoeff();
      const T target_logit = row(target);
      row = row.exp();
      const T total = row.sum();
      loss += static_cast<double>(std::log(total) - target_logit);
      row *= static_cast<T>(gradient_scale) / total;
      row(target) -= static_cast<T>(gradient_scale);
    }
    return loss;
  }

  // The logits of the token after `position`, counted over all sequences, as [vocabulary] values.
  void head_logits(const head_parameters<T>& p, int position, std::span<T> logits) {
    if (position < 0 || position >= rows_ ||
        logits.size() != static_cast<std::size_t>(shape_.vocabulary)) {
      throw std::invalid_argument("transformer: bad position or number of logits");
    }
    normalize(stream_.back(), p.norm, final_scale_, final_normed_);
    const auto output = weights(p.output, shape_.vocabulary, shape_.width);
    Eigen::Map<column>(logits.data(), shape_.vocabulary).noalias() =
        output * final_normed_.row(position).transpose();
  }

  void head_backward(const head_parameters<T>& p, const head_gradients<T>& g) {
    const index_t width = shape_.width, vocabulary = shape_.vocabulary;
    weights(g.output, vocabulary, width).noalias() = logits_.transpose() * final_normed_;
    d_narrow_.noalias() = logits_ * weights(p.output, vocabulary, width);
    d_stream_.setZero();
    normalize_backward(stream_.back(), p.norm, final_scale_, g.norm);
  }

  void block_backward(int layer, const block_parameters<T>& p, const block_gradients<T>& g) {
    const index_t width = shape_.width, mlp_width = shape_.mlp_width();
    const block_activations& block = blocks_.at(static_cast<std::size_t>(layer));

    weights(g.down, width, mlp_width).noalias() = d_stream_.transpose() * block.hidden;
    d_wide_.noalias() = d_stream_ * weights(p.down, width, mlp_width);
    // hidden = max(u, 0)^2, so its root is all that the derivative needs: u itself is not kept.
    d_wide_.array() *= T(2) * block.hidden.array().sqrt();
    weights(g.up, mlp_width, width).noalias() = d_wide_.transpose() * block.normed2;
    d_narrow_.noalias() = d_wide_ * weights(p.up, mlp_width, width);
    normalize_backward(block.middle, p.norm2, block.scale2, g.norm2);

    weights(g.out, width, width).noalias() = d_stream_.transpose() * block.attended;
    d_narrow_.noalias() = d_stream_ * weights(p.out, width, width);
    auto d_qkv = d_wide_.leftCols(3 * width);
    attend_backward(block, d_qkv);
    rotate(d_qkv, T(-1));
    weights(g.qkv, 3 * width, width).noalias() = d_qkv.transpose() * block.normed1;
    d_narrow_.noalias() = d_qkv * weights(p.qkv, 3 * width, width);
    normalize_backward(stream_[static_cast<std::size_t>(layer)], p.norm1, block.scale1, g.norm1);
  }

  void embed_backward(const embedding_gradients<T>& g) {
    auto table = weights(g.tokens, shape_.vocabulary, shape_.width);
    table.setZero();
    for (index_t i = 0; i < rows_; ++i) table.row(token(i)) += d_stream_.row(i);
  }

 private:
  using index_t = Eigen::Index;
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  using row_array = Eigen::Array<T, 1, Eigen::Dynamic>;

  // Attention goes through tiles of this many queries: half of the causal work is skipped and the
  // scores stay in the cache.
  static constexpr int query_rows = 64;

  struct block_activations {
    matrix normed1, qkv, attended, middle, normed2;
    matrix hidden;          // after the activation
    matrix lse;             // [rows, heads]: log-sum-exp of the scores, all that is kept of them
    column scale1, scale2;  // 1 / RMS of each row
  };

  static const transformer_shape& checked(const transformer_shape& shape, int sequences) {
    if (std::min({shape.layers, shape.heads, shape.width, shape.context, shape.vocabulary,
                  sequences}) < 1) {
      throw std::invalid_argument("transformer: every extent must be positive");
    }
    if (shape.width % (2 * shape.heads) != 0) {  // rotary positions turn pairs of channels
      throw std::invalid_argument("transformer: width must be a multiple of twice the heads");
    }
    if (shape.vocabulary > 256) {
      throw std::invalid_argument("transformer: tokens are bytes, the vocabulary has at most 256");
    }
    return shape;
  }

  void check_vocabulary(std::span<const std::uint8_t> tokens) const {
    if (!tokens.empty() && *std::max_element(tokens.begin(), tokens.end()) >= shape_.vocabulary) {
      throw std::invalid_argument("transformer: token outside the vocabulary");
    }
  }

  static Eigen::Map<const matrix> weights(const T* data, index_t rows, index_t cols) {
    return {data, rows, cols};
  }
  static Eigen::Map<matrix> weights(T* data, index_t rows, index_t cols) {
    return {data, rows, cols};
  }

  index_t token(index_t row) const { return tokens_[static_cast<std::size_t>(row)]; }

  void normalize(const matrix& x, const T* gain, column& scale, matrix& y) const {
    const Eigen::Map<const row_array> g(gain, x.cols());
    for (index_t i = 0; i < x.rows(); ++i) {
      scale(i) = T(1) / std::sqrt(x.row(i).squaredNorm() / static_cast<T>(x.cols()) + epsilon());
      y.row(i).array() = x.row(i).array() * scale(i) * g;
    }
  }

  // The gradient of the normalized rows is in d_narrow_; that of x is added to d_stream_.
  void normalize_backward(const matrix& x, const T* gain, const column& scale, T* d_gain) {
    const Eigen::Map<const row_array> g(gain, x.cols());
    Eigen::Map<row_array> dg(d_gain, x.cols());
    dg.setZero();
    for (index_t i = 0; i < x.rows(); ++i) {
      const auto row = x.row(i).array();
      const auto dy = d_narrow_.row(i).array();
      const T s = scale(i);
      const T along = (dy * g * row).sum() * s * s * s / static_cast<T>(x.cols());
      d_stream_.row(i).array() += s * (dy * g) - along * row;
      dg += s * (dy * row);
    }
  }

  // Turns the queries and keys by their positions (direction 1), or back (-1).
  template <class Matrix>
  void rotate(Matrix& qkv, T direction) {
    const index_t length = shape_.context, half = shape_.head_width() / 2;
    for (index_t sequence = 0; sequence < sequences_; ++sequence) {
      for (index_t head = 0; head < 2 * shape_.heads; ++head) {
        auto a = qkv.block(sequence * length, 2 * head * half, length, half).array();
        auto b = qkv.block(sequence * length, (2 * head + 1) * half, length, half).array();
        rotated_ = a * cosine_ - direction * b * sine_;
        b = b * cosine_ + direction * a * sine_;
        a = rotated_;
      }
    }
  }

  void attend(block_activations& block) {
    const index_t length = shape_.context, width = shape_.width, head_width = shape_.head_width();
    for (index_t first = 0; first < rows_; first += length) {
      for (index_t head = 0; head < shape_.heads; ++head) {
        const index_t channel = head * head_width;
        const auto q = block.qkv.block(first, channel, length, head_width);
        const auto k = block.qkv.block(first, width + channel, length, head_width);
        const auto v = block.qkv.block(first, 2 * width + channel, length, head_width);
        auto o = block.attended.block(first, channel, length, head_width);
        for (index_t query = 0; query < length; query += query_rows) {
          const index_t queries = std::min<index_t>(query_rows, length - query);
          const index_t keys = query + queries;
          auto scores = scores_.topLeftCorner(queries, keys);
          scores.noalias() = q.middleRows(query, queries) * k.topRows(keys).transpose();
          for (index_t i = 0; i < queries; ++i) {
            auto row = scores.row(i).array();
            const index_t seen = query + i + 1;
            const T top = row.head(seen).maxCoeff();
            // Clearing later keys afterwards is cheaper than an exponential with a ragged end.
            row = (score_scale_ * (row - top)).exp();
            row.tail(keys - seen).setZero();
            const T total = row.sum();
            row *= T(1) / total;
            block.lse(first + query + i, head) = score_scale_ * top + std::log(total);
          }
          o.middleRows(query, queries).noalias() = scores * v.topRows(keys);
        }
      }
    }
  }

  // The gradient of block.attended is in d_narrow_.
  template <class Matrix>
  void attend_backward(const block_activations& block, Matrix& d_qkv) {
    const index_t length = shape_.context, width = shape_.width, head_width = shape_.head_width();
    d_qkv.rightCols(2 * width).setZero();  // keys and values collect from several query tiles
    for (index_t first = 0; first < rows_; first += length) {
      for (index_t head = 0; head < shape_.heads; ++head) {
        const index_t channel = head * head_width;
        const auto q = block.qkv.block(first, channel, length, head_width);
        const auto k = block.qkv.block(first, width + channel, length, head_width);
        const auto v = block.qkv.block(first, 2 * width + channel, length, head_width);
        const auto o = block.attended.block(first, channel, length, head_width);
        const auto d_o = d_narrow_.block(first, channel, length, head_width);
        auto d_q = d_qkv.block(first, channel, length, head_width);
        auto d_k = d_qkv.block(first, width + channel, length, head_width);
        auto d_v = d_qkv.block(first, 2 * width + channel, length, head_width);
        for (index_t query = 0; query < length; query += query_rows) {
          const index_t queries = std::min<index_t>(query_rows, length - query);
          const index_t keys = query + queries;
          auto scores = scores_.topLeftCorner(queries, keys);
          auto d_scores = d_scores_.topLeftCorner(queries, keys);
          scores.noalias() = q.middleRows(query, queries) * k.topRows(keys).transpose();
          d_scores.noalias() = d_o.middleRows(query, queries) * v.topRows(keys).transpose();
          for (index_t i = 0; i < queries; ++i) {
            auto row = scores.row(i).array();
            auto d_row = d_scores.row(i).array();
            row = (score_scale_ * row - block.lse(first + query + i, head)).exp();
            row.tail(keys - query - i - 1).setZero();
            d_row = score_scale_ * row * (d_row - d_o.row(query + i).dot(o.row(query + i)));
          }
          d_q.middleRows(query, queries).noalias() = d_scores * k.topRows(keys);
          d_k.topRows(keys).noalias() += d_scores.transpose() * q.middleRows(query, queries);
          d_v.topRows(keys).noalias() += scores.transpose() * d_o.middleRows(query, queries);
        }
      }
    }
  }

  static constexpr T epsilon() { return T(1e-6); }

  transformer_shape shape_;
  int sequences_;
  index_t rows_;  // sequences * context
  T score_scale_;

  std::vector<std::uint8_t> tokens_;
  std::vector<matrix> stream_;  // the residual stream before each block and after the last
  std::vector<block_activations> blocks_;
  matrix final_normed_;
  column final_scale_;
  matrix logits_;

  // One gradient of the residual stream for all layers: each adds its own part to it.
  matrix d_stream_;
  matrix d_narrow_, d_wide_;  // of whatever lies between, [rows, C] and [rows, F]
  matrix scores_, d_scores_;  // of one attention tile
  Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> cosine_, sine_, rotated_;
};

}  // namespace train_gpt
