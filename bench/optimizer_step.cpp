// One optimizer step on the parameters of GPT-2 124M, on one thread, beside the same rules written
// plainly with Eigen: time, state bytes per parameter, and how far the products are from the floor.
//
// Each distinct shape is timed and counted as often as the model has it. Shampoo and SOAP refresh
// their preconditioners every `frequency` steps; the cost of that is shown and amortised.

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <Eigen/Dense>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "report.hpp"

namespace {

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct shape_count {
  matrix_shape shape;
  index_t count;
};

// GPT-2 124M: 12 blocks of width 768, vocabulary 50257, context 1024; query, key and value apart.
const std::vector<shape_count> matrices{{{768, 768}, 48}, {{3072, 768}, 12}, {{768, 3072}, 12}};
// Embeddings; then all gains and biases as if they were one tensor.
const std::vector<shape_count> others{
    {{1, 50257 * 768}, 1}, {{1, 1024 * 768}, 1}, {{1, 121344}, 1}};

double seconds(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

matrix sample(matrix_shape shape, double phase) {
  matrix m(shape.rows, shape.cols);
  for (index_t i = 0; i < m.size(); ++i) {
    const double x = static_cast<double>(i);
    m.data()[i] = static_cast<float>(std::sin(phase + 1.3 * x + 1e-4 * x * x));
  }
  return m;
}

// ---------------------------------------------------------------------------- plain Eigen forms

struct plain_adamw {
  matrix m, v;
  void step(matrix& w, const matrix& g, std::int64_t t) {
    if (m.size() == 0) m = v = matrix::Zero(w.rows(), w.cols());
    const float correction1 = 1 - std::pow(0.9f, static_cast<float>(t));
    const float correction2 = std::sqrt(1 - std::pow(0.999f, static_cast<float>(t)));
    m = 0.9f * m + 0.1f * g;
    v = 0.999f * v + 0.001f * g.cwiseProduct(g);
    w *= 1 - 1e-3f * 0.01f;
    w.array() -= 1e-3f / correction1 * m.array() / (v.array().sqrt() / correction2 + 1e-8f);
  }
};

struct plain_muon {
  matrix m;
  void step(matrix& w, const matrix& g, std::int64_t) {
    if (m.size() == 0) m = matrix::Zero(w.rows(), w.cols());
    m = 0.95f * m + 0.05f * g;
    matrix x = 0.95f * m + 0.05f * g;
    const bool tall = x.rows() > x.cols();
    if (tall) x = x.transpose().eval();
    x /= x.norm() + 1e-7f;
    for (int i = 0; i < 5; ++i) {
      const matrix a = x * x.transpose();
      const matrix b = -4.7750f * a + 2.0315f * a * a;
      x = (3.4445f * x + b * x).eval();
    }
    if (tall) x = x.transpose().eval();
    const float aspect = static_cast<float>(w.rows()) / static_cast<float>(w.cols());
    w -= 0.02f * std::sqrt(std::max(1.0f, aspect)) * x;
  }
};

struct plain_shampoo {
  static constexpr index_t cap = 1024;
  index_t frequency;
  std::vector<matrix> left{}, right{}, left_root{}, right_root{};
  matrix filtered{};

  static matrix root(const matrix& factor) {
    const Eigen::SelfAdjointEigenSolver<matrix> solver(factor);
    const Eigen::VectorXf powers =
        (solver.eigenvalues().array() - std::min(0.0f, solver.eigenvalues()[0]) + 1e-12f)
            .pow(-0.25f);
    return solver.eigenvectors() * powers.asDiagonal() * solver.eigenvectors().transpose();
  }
  void step(matrix& w, const matrix& g, std::int64_t t) {
    if (filtered.size() == 0) filtered = matrix::Zero(w.rows(), w.cols());
    filtered = 0.9f * filtered + 0.1f * g;
    const float correction = 1 - std::pow(0.9f, static_cast<float>(t));
    std::size_t b = 0;
    for (index_t row = 0; row < w.rows(); row += cap) {
      for (index_t col = 0; col < w.cols(); col += cap, ++b) {
        const index_t rows = std::min(cap, w.rows() - row);
        const index_t cols = std::min(cap, w.cols() - col);
        if (b == left.size()) {
          left.push_back(matrix::Zero(rows, rows));
          right.push_back(matrix::Zero(cols, cols));
          left_root.emplace_back();
          right_root.emplace_back();
        }
        const matrix block = g.block(row, col, rows, cols);
        left[b] += block * block.transpose();
        right[b] += block.transpose() * block;
        if (t == 1 || t % frequency == 0) {
          left_root[b] = root(left[b]);
          right_root[b] = root(right[b]);
        }
        w.block(row, col, rows, cols) -= 0.01f / correction * left_root[b] *
                                         filtered.block(row, col, rows, cols) * right_root[b];
      }
    }
  }
};

struct plain_soap {
  static constexpr index_t cap = 1024;
  index_t frequency;
  matrix left{}, right{}, left_basis{}, right_basis{}, m{}, v{};

  static matrix basis(const matrix& factor) {
    return Eigen::SelfAdjointEigenSolver<matrix>(factor).eigenvectors();
  }
  static void refresh(matrix& q, const matrix& factor) {
    const Eigen::HouseholderQR<matrix> qr(factor * q);
    q = qr.householderQ();
  }
  [[nodiscard]] matrix turn(const matrix& x) const {
    matrix y = left.size() > 0 ? matrix(left_basis.transpose() * x) : x;
    return right.size() > 0 ? matrix(y * right_basis) : y;
  }
  [[nodiscard]] matrix turn_back(const matrix& x) const {
    matrix y = left.size() > 0 ? matrix(left_basis * x) : x;
    return right.size() > 0 ? matrix(y * right_basis.transpose()) : y;
  }
  void step(matrix& w, const matrix& g, std::int64_t t) {
    const bool first = m.size() == 0;
    if (first) {
      m = v = matrix::Zero(w.rows(), w.cols());
      if (w.rows() <= cap) left = matrix::Zero(w.rows(), w.rows());
      if (w.cols() <= cap) right = matrix::Zero(w.cols(), w.cols());
    } else {
      const matrix turned = turn(g);
      m = 0.95f * m + 0.05f * turned;
      v = 0.95f * v + 0.05f * turned.cwiseProduct(turned);
      const float s = static_cast<float>(t - 1);
      const float rate = 3e-3f * std::sqrt(1 - std::pow(0.95f, s)) / (1 - std::pow(0.95f, s));
      w -= rate * turn_back((m.array() / (v.array().sqrt() + 1e-8f)).matrix());
      w *= 1 - 3e-3f * 0.01f;
    }
    const matrix back = first ? m : turn_back(m);
    if (left.size() > 0) left = 0.95f * left + 0.05f * g * g.transpose();
    if (right.size() > 0) right = 0.95f * right + 0.05f * g.transpose() * g;
    if (first) {
      if (left.size() > 0) left_basis = basis(left);
      if (right.size() > 0) right_basis = basis(right);
    } else if ((t - 1) % frequency == 0) {
      if (left.size() > 0) refresh(left_basis, left);
      if (right.size() > 0) refresh(right_basis, right);
    }
    m = turn(back);
  }
};

// --------------------------------------------------------------------------------------- timing

struct cost {
  double plain_step = 0;  // seconds of a step without a refresh
  double refresh = 0;     // seconds of a step with one
  void add(const cost& other, index_t times) {
    plain_step += static_cast<double>(times) * other.plain_step;
    refresh += static_cast<double>(times) * other.refresh;
  }
  [[nodiscard]] double amortised(index_t frequency) const {
    if (frequency == 1) return plain_step;
    const double f = static_cast<double>(frequency);
    return ((f - 1) * plain_step + refresh) / f;
  }
};

// One parameter with the library's states.
template <class O>
class ours {
 public:
  ours(const O& rule, matrix_shape shape)
      : rule_(rule),
        shape_(shape),
        workspace_(backend_.allocate<float>(rule.workspace_size(shape))) {
    for (const mfsdp::state_spec& state : rule.states(shape)) {
      memory_.push_back(backend_.allocate<float>(state.elements));
      backend_.fill(memory_.back().span(), 0.0f);
    }
  }
  void step(matrix& w, const matrix& g, std::int64_t t) {
    mfsdp::state_spans<O, float> states;
    for (std::size_t i = 0; i < states.size(); ++i) states[i] = memory_[i].span();
    rule_.update(backend_, states, matrix_view<float>(w.data(), shape_),
                 matrix_view<const float>(g.data(), shape_),
                 mfsdp::update_context<float>{t, 1, workspace_.span()});
  }

 private:
  mfsdp::cpu_backend backend_;
  O rule_;
  matrix_shape shape_;
  mfsdp::host_buffer<float> workspace_;
  std::vector<mfsdp::host_buffer<float>> memory_;
};

// Both on the same gradients, in turns. Step `first` is the first that counts, `due` one that
// refreshes.
template <class O, class Plain>
std::pair<cost, cost> time_shape(const O& rule, Plain plain, matrix_shape shape, int repetitions,
                                 std::int64_t due) {
  ours<O> mine(rule, shape);
  matrix w = sample(shape, 0.3);
  matrix plain_w = w;
  const matrix g = sample(shape, 0.8);
  mine.step(w, g, 1);
  plain.step(plain_w, g, 1);
  std::vector<double> mine_steps, plain_steps;
  for (int i = 0; i < repetitions; ++i) {
    mine_steps.push_back(seconds([&] { mine.step(w, g, 2 + i); }));
    plain_steps.push_back(seconds([&] { plain.step(plain_w, g, 2 + i); }));
  }
  const cost a{median(mine_steps), seconds([&] { mine.step(w, g, due); })};
  const cost b{median(plain_steps), seconds([&] { plain.step(plain_w, g, due); })};
  return {a, b};
}

struct line {
  std::string name;
  cost mine, plain;
  index_t frequency = 1;
  double state_bytes = 0;  // per parameter
};

// A step of the whole model: matrices by the rule, the rest by AdamW, or all by AdamW.
template <class O, class Plain>
line time_model(const O& rule, const Plain& plain, index_t frequency, std::int64_t due,
                int repetitions) {
  line result{std::string(O::name), {}, {}, frequency};
  const auto add = [&](const auto& by, const auto& plainly, const std::vector<shape_count>& shapes,
                       std::int64_t step) {
    for (const auto& [shape, count] : shapes) {
      const auto [a, b] = time_shape(by, plainly, shape, repetitions, step);
      result.mine.add(a, count);
      result.plain.add(b, count);
      for (const mfsdp::state_spec& state : by.states(shape)) {
        result.state_bytes += 4.0 * static_cast<double>(state.elements * count);
      }
      std::fprintf(stderr, ".");
    }
  };
  add(rule, plain, matrices, due);
  add(mfsdp::adamw{}, plain_adamw{}, others, 2);
  index_t parameters = 0;
  for (const auto& shapes : {matrices, others}) {
    for (const auto& [shape, count] : shapes) parameters += shape.elements() * count;
  }
  result.state_bytes /= static_cast<double>(parameters);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"One optimizer step on GPT-2 124M, one thread, beside plain Eigen forms."};
  int repetitions = 3;
  index_t frequency = 10;
  std::string json_path;
  app.add_option("--repetitions", repetitions, "timed steps of each shape")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--frequency", frequency, "steps between refreshes of Shampoo and SOAP")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", json_path, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);

  // Otherwise the plain forms mostly measure how glibc returns memory to the system.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);

  const std::vector<line> lines{
      time_model(mfsdp::adamw{}, plain_adamw{}, 1, 2, repetitions),
      time_model(mfsdp::muon{}, plain_muon{}, 1, 2, repetitions),
      time_model(mfsdp::soap{.frequency = frequency, .max_preconditioner_dimension = 1024},
                 plain_soap{frequency}, frequency, 100 * frequency + 1, repetitions),
      time_model(mfsdp::shampoo{.frequency = frequency, .start = 1}, plain_shampoo{frequency},
                 frequency, 100 * frequency, repetitions),
  };

  std::fprintf(stderr, "\n");
  fmt::print("{:<10} {:>9} {:>12} {:>13} {:>13} {:>9} {:>18}\n", "optimizer", "step s", "refresh s",
             "amortised s", "plain Eigen", "speedup", "state bytes/param");
  nlohmann::ordered_json figures{{"frequency", frequency}};
  for (const line& l : lines) {
    const double mine = l.mine.amortised(l.frequency);
    const double plain = l.plain.amortised(l.frequency);
    fmt::print("{:<10} {:>9.3f} {:>12.3f} {:>13.3f} {:>13.3f} {:>9.2f} {:>18.2f}\n", l.name,
               l.mine.plain_step, l.mine.refresh, mine, plain, plain / mine, l.state_bytes);
    figures["step_seconds_" + l.name] = l.mine.plain_step;
    figures["refresh_seconds_" + l.name] = l.mine.refresh;
    figures["amortised_seconds_" + l.name] = mine;
    figures["plain_eigen_seconds_" + l.name] = plain;
    figures["speedup_" + l.name] = plain / mine;
    figures["state_bytes_per_parameter_" + l.name] = l.state_bytes;
  }
  try {
    write_figures(json_path, figures);
  } catch (const std::exception& e) {
    fmt::print(stderr, "optimizer_step: {}\n", e.what());
    return 1;
  }
  return 0;
}
