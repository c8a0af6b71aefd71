#include "../../examples/train_gpt/transformer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../examples/train_gpt/text.hpp"

namespace transformer_test {

namespace {

using namespace train_gpt;

// Two query tiles, the second one ragged; odd extents elsewhere, so that no packet fits by luck.
constexpr transformer_shape small{
    .layers = 2, .heads = 2, .width = 12, .context = 70, .vocabulary = 9};
constexpr int sequences = 2;

// All tensors of a model or of its gradient, by name.
template <class T>
class tensors {
 public:
  explicit tensors(const transformer_shape& shape) {
    const int width = shape.width, mlp_width = shape.mlp_width();
    add("embedding.tokens", shape.vocabulary * width);
    for (int layer = 0; layer < shape.layers; ++layer) {
      const std::string block = "block." + std::to_string(layer) + '.';
      add(block + "norm1", width);
      add(block + "qkv", 3 * width * width);
      add(block + "out", width * width);
      add(block + "norm2", width);
      add(block + "up", mlp_width * width);
      add(block + "down", width * mlp_width);
    }
    add("head.norm", width);
    add("head.output", shape.vocabulary * width);
  }

  void fill(T value) {
    for (auto& [name, values] : by_name) values.setConstant(value);
  }

  template <class Pointer>
  embedding_tensors<Pointer> embedding() {
    return {at("embedding.tokens")};
  }
  template <class Pointer>
  block_tensors<Pointer> block(int layer) {
    const std::string block = "block." + std::to_string(layer) + '.';
    return {at(block + "norm1"), at(block + "qkv"), at(block + "out"),
            at(block + "norm2"), at(block + "up"),  at(block + "down")};
  }
  template <class Pointer>
  head_tensors<Pointer> head() {
    return {at("head.norm"), at("head.output")};
  }

  std::map<std::string, Eigen::Array<T, Eigen::Dynamic, 1>> by_name;  // Eigen aligns its storage

 private:
  void add(const std::string& name, int size) { by_name[name].resize(size); }
  T* at(const std::string& name) { return by_name.at(name).data(); }
};

// Values that put every nonlinearity to work, unlike those a training starts from.
tensors<double> busy_parameters() {
  tensors<double> p(small);
  for (auto& [name, values] : p.by_name) {
    const initial_values noise(small, name + ".up", 1);
    const bool gain = name.find("norm") != std::string::npos;
    for (Eigen::Index i = 0; i < values.size(); ++i) {
      values(i) = (gain ? 1.0 : 0.0) + noise(static_cast<std::uint64_t>(i));
    }
  }
  return p;
}

struct batch {
  std::vector<std::uint8_t> inputs, targets;
};

batch random_batch() {
  batch b;
  std::uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<std::uint8_t>((state >> 16) % small.vocabulary);
  };
  for (int i = 0; i < sequences * small.context; ++i) {
    b.inputs.push_back(next());
    b.targets.push_back(next());
  }
  return b;
}

template <class T>
double mean_loss(transformer<T>& model, tensors<T>& p, const batch& b) {
  const double scale = 1.0 / static_cast<double>(b.targets.size());
  model.embed_forward(p.template embedding<const T*>(), b.inputs);
  for (int i = 0; i < small.layers; ++i) model.block_forward(i, p.template block<const T*>(i));
  return model.head_loss(p.template head<const T*>(), b.targets, scale) * scale;
}

template <class T>
tensors<T> gradient(transformer<T>& model, tensors<T>& p, const batch& b) {
  tensors<T> g(small);
  g.fill(std::numeric_limits<T>::quiet_NaN());  // survives wherever a gradient is added or skipped
  mean_loss(model, p, b);
  model.head_backward(p.template head<const T*>(), g.template head<T*>());
  for (int i = small.layers; i-- > 0;) {
    model.block_backward(i, p.template block<const T*>(i), g.template block<T*>(i));
  }
  model.embed_backward(g.template embedding<T*>());
  return g;
}

template <class Exception, class Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the gradient of every tensor agrees with central differences") {
  transformer<double> model(small, sequences);
  tensors<double> p = busy_parameters();
  const batch b = random_batch();
  const tensors<double> g = gradient(model, p, b);
  for (auto& [name, values] : p.by_name) {
    CAPTURE(name);
    const auto& analytic = g.by_name.at(name);
    REQUIRE(analytic.isFinite().all());
    const double typical = std::sqrt(analytic.square().mean());
    REQUIRE(typical > 0);
    const Eigen::Index probes = std::min<Eigen::Index>(values.size(), 25);
    for (Eigen::Index probe = 0; probe < probes; ++probe) {
      const Eigen::Index i = probe * values.size() / probes;
      const double value = values(i), step = 1e-5;
      const auto loss_at = [&](double x) {
        values(i) = x;
        return mean_loss(model, p, b);
      };
      const double numeric = (loss_at(value + step) - loss_at(value - step)) / (2 * step);
      values(i) = value;
      CAPTURE(i);
      CHECK(std::abs(analytic(i) - numeric) < 1e-6 * std::max(std::abs(numeric), typical));
    }
  }
}

TEST_CASE("float agrees with double and repeats itself bit by bit") {
  transformer<double> exact(small, sequences);
  transformer<float> model(small, sequences), other(small, sequences);
  tensors<double> p = busy_parameters();
  tensors<float> q(small);
  for (auto& [name, values] : q.by_name) values = p.by_name.at(name).cast<float>();
  tensors<float> elsewhere = q;
  const batch b = random_batch();
  CHECK(mean_loss(model, q, b) == doctest::Approx(mean_loss(exact, p, b)).epsilon(1e-6));
  const tensors<double> wanted = gradient(exact, p, b);
  const tensors<float> got = gradient(model, q, b), again = gradient(other, elsewhere, b);
  for (const auto& [name, values] : got.by_name) {
    CAPTURE(name);
    const auto& exact_values = wanted.by_name.at(name);
    const double error = (values.cast<double>() - exact_values).matrix().norm();
    CHECK(error < 1e-5 * exact_values.matrix().norm());
    CHECK((values == again.by_name.at(name)).all());
  }
}

TEST_CASE("a prompt shorter than the context predicts as the same prompt inside a longer text") {
  tensors<double> p = busy_parameters();
  const batch b = random_batch();
  const auto logits_at = [&](int count, std::span<const std::uint8_t> tokens, int position) {
    transformer<double> model(small, count);
    std::vector<double> logits(small.vocabulary);
    model.embed_forward(p.embedding<const double*>(), tokens);
    for (int i = 0; i < small.layers; ++i) model.block_forward(i, p.block<const double*>(i));
    model.head_logits(p.head<const double*>(), position, logits);
    return logits;
  };
  for (const int length : {1, 64, 66}) {
    const auto prompt = std::span(b.inputs).first(static_cast<std::size_t>(length));
    const auto alone = logits_at(1, prompt, length - 1);
    const auto inside = logits_at(sequences, b.inputs, length - 1);
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(alone[i] == doctest::Approx(inside[i]));
  }
}

TEST_CASE("a model refuses shapes and tokens that it cannot handle") {
  const auto with = [](auto change) {
    transformer_shape shape = small;
    change(shape);
    return shape;
  };
  using model = transformer<float>;
  CHECK_THROWS_AS(model(with([](auto& s) { s.vocabulary = 0; }), 1), std::invalid_argument);
  CHECK_THROWS_AS(model(with([](auto& s) { s.vocabulary = 257; }), 1), std::invalid_argument);
  CHECK_THROWS_AS(model(with([](auto& s) { s.width = 14; }), 1), std::invalid_argument);
  CHECK_THROWS_AS(model(small, 0), std::invalid_argument);
  model m(small, 1);
  tensors<float> p(small);
  p.fill(1);
  const std::vector<std::uint8_t> too_many(small.context + 1), unknown{small.vocabulary};
  CHECK_THROWS_AS(m.embed_forward(p.embedding<const float*>(), too_many), std::invalid_argument);
  CHECK_THROWS_AS(m.embed_forward(p.embedding<const float*>(), unknown), std::invalid_argument);
}

TEST_CASE("a token costs six operations per parameter, and its attention") {
  const transformer_shape shape{.vocabulary = 65};
  const double parameters = 4 * 12 * 128. * 128 + 65 * 128;
  CHECK(training_flops_per_token(shape) == 6 * parameters + 6 * 4 * 128. * 128);
}

TEST_CASE("an initial value depends on seed, tensor and index_t only") {
  const initial_values whole(small, "block.1.qkv", 7), part(small, "block.1.qkv", 7);
  std::vector<double> values;
  for (std::uint64_t i = 0; i < 20000; ++i) values.push_back(whole(i));
  bool same = true;
  for (std::uint64_t i = 20000; i-- > 12345;) same = same && part(i) == values[i];
  CHECK(same);  // any slice, in any order

  double mean = 0, square = 0;
  for (const double value : values) {
    mean += value / 20000;
    square += value * value / 20000;
  }
  CHECK(std::abs(mean) < 0.01);
  CHECK(square == doctest::Approx(1.0 / small.width).epsilon(0.05));

  CHECK(initial_values(small, "block.0.qkv", 7)(0) != values[0]);
  CHECK(initial_values(small, "block.1.up", 7)(0) != values[0]);
  CHECK(initial_values(small, "block.1.qkv", 8)(0) != values[0]);
  CHECK(initial_values(small, "block.0.norm2", 7)(3) == 1);
  CHECK(initial_values(small, "block.0.down", 7)(3) == 0);
  CHECK_THROWS_AS(initial_values(small, "block.0.bias", 7), std::invalid_argument);
}

TEST_CASE("a training window depends on seed, step and sequence only") {
  const text t(synthetic_text(20000, 1), 64);
  const auto window = [&](std::uint64_t seed, std::uint64_t step, std::uint64_t sequence) {
    batch b{std::vector<std::uint8_t>(64), std::vector<std::uint8_t>(64)};
    training_window(t.training(), seed, step, sequence, b.inputs, b.targets);
    return b;
  };
  const batch b = window(1, 2, 3);
  CHECK(window(1, 2, 3).inputs == b.inputs);
  CHECK(std::ranges::equal(std::span(b.inputs).subspan(1), std::span(b.targets).first(63)));
  CHECK(window(1ull << 32 | 1, 2, 3).inputs != b.inputs);
  CHECK(window(1, 3, 3).inputs != b.inputs);
  CHECK(window(1, 2, 4).inputs != b.inputs);
  CHECK(window(1, 3, 2).inputs != window(1, 2, 3).inputs);
}

TEST_CASE("validation windows are fixed and reach both ends") {
  const text t(synthetic_text(5000, 1), 64);
  std::vector<std::uint8_t> inputs(64), targets(64);
  validation_window(t.validation(), 0, 5, inputs, targets);
  CHECK(std::ranges::equal(inputs, t.validation().first(64)));
  validation_window(t.validation(), 4, 5, inputs, targets);
  CHECK(std::ranges::equal(targets, t.validation().last(64)));
  CHECK_THROWS_AS(validation_window(t.validation(), 5, 5, inputs, targets), std::out_of_range);
}

TEST_CASE("the bigram baseline") {
  // "abab...": each pair is certain but for the one count of smoothing.
  std::string alternating;
  for (int i = 0; i < 5000; ++i) alternating += "ab";
  const double certain = -std::log(4501.0 / 4502);
  CHECK(bigram_loss(text(alternating, 8)) == doctest::Approx(certain).epsilon(1e-3));

  const text t(synthetic_text(50000, 1), 64);
  CHECK(bigram_loss(t) > 1);
  CHECK(bigram_loss(t) < 0.8 * std::log(t.vocabulary()));
}

TEST_CASE("a text encodes the bytes that occur in it and no others") {
  const std::string bytes = synthetic_text(3000, 5);
  CHECK(bytes == synthetic_text(3000, 5));
  CHECK(bytes != synthetic_text(3000, 6));
  const text t(bytes, 32);
  CHECK(t.training().size() == 2700);
  CHECK(t.validation().size() == 300);
  CHECK(t.decode(t.training()) + t.decode(t.validation()) == bytes);
  CHECK(t.decode(t.encode("bad ")) == "bad ");
  CHECK_THROWS_AS(t.encode("\x80"), std::invalid_argument);
}

TEST_CASE("a file that cannot be trained on is refused with a reason") {
  const auto path = std::filesystem::temp_directory_path() /
                    ("train_gpt_text_test." + std::to_string(std::random_device()()));
  const auto refusal = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return message_of<std::runtime_error>([&] { load_text(path, 16); });
  };
  const auto has = [](const std::string& message, const char* part) {
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
  };
  has(refusal(""), "empty");
  has(refusal(std::string(1000, 'a')), "single byte");
  has(refusal(synthetic_text(16, 1)), "too short for context 16");
  has(refusal(synthetic_text(169, 1)), "too short for context 16");
  CHECK(refusal(synthetic_text(170, 1)).empty());
  std::filesystem::remove(path);
  has(message_of<std::runtime_error>([&] { load_text(path, 16); }), "cannot read");
  has(message_of<std::runtime_error>([&] { load_text(path.parent_path(), 16); }), "cannot read");
}

}  // namespace transformer_test
