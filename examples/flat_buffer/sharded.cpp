// A trainer in the style of llm.c: a byte-level transformer with one flat parameter buffer, flat
// gradients, pointers by arithmetic and kernels as plain loops. Data-parallel: each worker has its
// own micro-batches, and their gradients are summed in order.
//
//   flat_buffer_plain   [workers = 4] [steps = 20] [text file]   workers take turns
//   flat_buffer_sharded [workers = 4] [steps = 20] [text file]   workers are ranks of mfsdp
//
// Both print the same losses, to the last bit: docs/flat_buffer.md. To that end both use the
// library's AdamW and sum of squares, since a compiler may fuse a * b + c * d in two ways, so that
// a second spelling could differ; and kernels that multiply and add are not inlined.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "mfsdp/mfsdp.hpp"

constexpr int V = 256, C = 64, L = 3, T = 64;  // bytes, width, layers, tokens of a micro-batch
constexpr int MICRO = 2;                       // micro-batches a step
constexpr int EMBED = 0, HEAD = L + 1;         // units; 1 to L are the layers
enum { TOKENS, POSITIONS };                    // tensors of the embedding,
enum { NORM1, QKV, PROJ, NORM2, UP, DOWN };    // of a layer,
enum { NORM, LOGITS };                         // of the head; LOGITS is TOKENS again

using weights = std::span<const float* const>;  // the tensors of one unit
using gradients = std::span<float* const>;
using bytes = const unsigned char*;
using buffer = std::vector<float>;

// ---- Parameters: the embedding, the layers, the gain of the last norm.

mfsdp::model_spec model_of_units() {
  mfsdp::model_spec spec;
  spec.unit("embed").elementwise("tokens", {V, C}).elementwise("positions", {T, C});
  for (int l = 0; l < L; ++l) {
    spec.unit("layer." + std::to_string(l))
        .vector("norm1", C)
        .matrix("qkv", 3 * C, C)
        .matrix("proj", C, C)
        .vector("norm2", C)
        .matrix("up", 4 * C, C)
        .matrix("down", C, 4 * C);
  }
  spec.unit("head").vector("norm", C).tied("logits", "embed.tokens");
  return spec;
}

// A gain starts at 1, a weight as noise: a function of its position, however it is stored.
float initial(std::size_t tensor, std::size_t i, bool is_gain) {
  std::uint64_t h = (tensor << 32 ^ i) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  return is_gain ? 1 : (static_cast<float>(h >> 40) / (1 << 23) - 1) * 0.08f;
}

// ---- Kernels: forward ones write, backward ones add.

[[gnu::noinline]] float dot(const float* a, const float* b, int n) {
  float lane[16] = {}, sum = 0;
  for (int i = 0; i < n; i += 16) {
    for (int j = 0; j < 16; ++j) lane[j] += a[i + j] * b[i + j];
  }
  for (float x : lane) sum += x;
  return sum;
}

[[gnu::noinline]] void axpy(float a, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] += a * x[i];
}

// y = x w^T
void linear(buffer& y, const buffer& x, const float* w, int in, int out) {
  for (int t = 0; t < T; ++t) {
    for (int o = 0; o < out; ++o) y[t * out + o] = dot(&x[t * in], w + o * in, in);
  }
}

buffer linear_backward(float* dw, const buffer& dy, const buffer& x, const float* w, int in,
                       int out) {
  buffer dx(T * in);
  for (int t = 0; t < T; ++t) {
    for (int o = 0; o < out; ++o) {
      axpy(dy[t * out + o], w + o * in, &dx[t * in], in);
      axpy(dy[t * out + o], &x[t * in], dw + o * in, in);
    }
  }
  return dx;
}

// Of one token: x = a + b, the residual stream, and y = norm(x), the input of what comes next.
[[gnu::noinline]] void add_and_norm(float* x, float* y, const float* a, const float* b,
                                    const float* gain) {
  for (int i = 0; i < C; ++i) x[i] = a[i] + b[i];
  const float r = 1 / std::sqrt(dot(x, x, C) / C + 1e-5f);
  for (int i = 0; i < C; ++i) y[i] = x[i] * r * gain[i];
}

[[gnu::noinline]] void norm_backward(buffer& dx, float* dgain, const buffer& dy, const buffer& x,
                                     const float* gain) {
  float h[C];
  for (int t = 0; t < T * C; t += C) {
    const float r = 1 / std::sqrt(dot(&x[t], &x[t], C) / C + 1e-5f);
    for (int i = 0; i < C; ++i) h[i] = dy[t + i] * r * gain[i];
    for (int i = 0; i < C; ++i) dgain[i] += dy[t + i] * r * x[t + i];
    const float k = dot(h, &x[t], C) * r * r / C;
    for (int i = 0; i < C; ++i) dx[t + i] += h[i] - k * x[t + i];
  }
}

[[gnu::noinline]] void softmax(float* x, int n) {
  float largest = x[0], sum = 0;
  for (int i = 1; i < n; ++i) largest = std::fmax(largest, x[i]);
  for (int i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - largest);
  for (int i = 0; i < n; ++i) x[i] /= sum;
}

// One causal head; row t of p has the probabilities of tokens 0 to t, and zeros.
void attention(buffer& y, buffer& p, const buffer& qkv) {
  y.assign(T * C, 0);
  for (int t = 0; t < T; ++t) {
    const float *q = &qkv[t * 3 * C], *k = &qkv[C], *v = &qkv[2 * C];
    for (int s = 0; s <= t; ++s) p[t * T + s] = dot(q, k + s * 3 * C, C) / std::sqrt(float(C));
    softmax(&p[t * T], t + 1);
    for (int s = 0; s <= t; ++s) axpy(p[t * T + s], v + s * 3 * C, &y[t * C], C);
  }
}

buffer attention_backward(const buffer& dy, const buffer& p, const buffer& qkv) {
  buffer dqkv(T * 3 * C);
  for (int t = 0; t < T; ++t) {
    const float *q = &qkv[t * 3 * C], *k = &qkv[C], *v = &qkv[2 * C];
    float *dq = &dqkv[t * 3 * C], *dk = &dqkv[C], *dv = &dqkv[2 * C], dp[T] = {};
    for (int s = 0; s <= t; ++s) dp[s] = dot(&dy[t * C], v + s * 3 * C, C);
    const float mean = dot(&p[t * T], dp, T);
    for (int s = 0; s <= t; ++s) {
      const float ds = p[t * T + s] * (dp[s] - mean) / std::sqrt(float(C));
      axpy(p[t * T + s], &dy[t * C], dv + s * 3 * C, C);
      axpy(ds, k + s * 3 * C, dq, C);
      axpy(ds, q, dk + s * 3 * C, C);
    }
  }
  return dqkv;
}

// ---- Units.

struct activations {
  float loss_scale;  // 1 / tokens of a step, of all workers
  struct of_layer {
    buffer x = buffer(T * C), x_norm = x, mid = x, mid_norm = x;  // residual stream and its norms
    buffer qkv = buffer(T * 3 * C), p = buffer(T * T), heads = x, up = buffer(T * 4 * C), act = up;
  };
  of_layer layer[L + 1] = {};  // the last one is the input of the head
  buffer out = buffer(T * C), dx = out, p = buffer(T * V);
};

void embed(weights w, weights next, activations& a, bytes text) {
  for (int t = 0; t < T; ++t) {
    add_and_norm(&a.layer[0].x[t * C], &a.layer[0].x_norm[t * C], w[TOKENS] + text[t] * C,
                 w[POSITIONS] + t * C, next[NORM1]);
  }
}

void embed_backward(gradients g, activations& a, bytes text) {
  for (int t = 0; t < T; ++t) axpy(1, &a.dx[t * C], g[TOKENS] + text[t] * C, C);
  axpy(1, a.dx.data(), g[POSITIONS], T * C);
}

// The last kernel reads the gain of the next unit, which is the first of its tensors.
void layer(weights w, weights next, activations& a, int l) {
  auto &f = a.layer[l], &after = a.layer[l + 1];
  linear(f.qkv, f.x_norm, w[QKV], C, 3 * C);
  attention(f.heads, f.p, f.qkv);
  linear(a.out, f.heads, w[PROJ], C, C);
  for (int t = 0; t < T * C; t += C) {
    add_and_norm(&f.mid[t], &f.mid_norm[t], &f.x[t], &a.out[t], w[NORM2]);
  }
  linear(f.up, f.mid_norm, w[UP], C, 4 * C);
  for (float& x : f.up) x = std::fmax(x, 0.0f);
  for (int i = 0; i < T * 4 * C; ++i) f.act[i] = f.up[i] * f.up[i];
  linear(a.out, f.act, w[DOWN], 4 * C, C);
  for (int t = 0; t < T * C; t += C) {
    add_and_norm(&after.x[t], &after.x_norm[t], &f.mid[t], &a.out[t], next[NORM1]);
  }
}

void layer_backward(weights w, gradients g, activations& a, int l) {
  const auto& f = a.layer[l];
  buffer dact = linear_backward(g[DOWN], a.dx, f.act, w[DOWN], 4 * C, C);
  for (int i = 0; i < T * 4 * C; ++i) dact[i] *= 2 * f.up[i];
  const buffer dmid = linear_backward(g[UP], dact, f.mid_norm, w[UP], C, 4 * C);
  norm_backward(a.dx, g[NORM2], dmid, f.mid, w[NORM2]);
  const buffer dheads = linear_backward(g[PROJ], a.dx, f.heads, w[PROJ], C, C);
  const buffer dqkv = attention_backward(dheads, f.p, f.qkv);
  const buffer dx = linear_backward(g[QKV], dqkv, f.x_norm, w[QKV], C, 3 * C);
  norm_backward(a.dx, g[NORM1], dx, f.x, w[NORM1]);
}

// Returns this micro-batch's part of the mean loss.
double head(weights w, activations& a, bytes text) {
  double loss = 0;
  linear(a.p, a.layer[L].x_norm, w[LOGITS], C, V);
  for (int t = 0; t < T; ++t) {
    softmax(&a.p[t * V], V);
    loss -= std::log(a.p[t * V + text[t + 1]]);
  }
  return loss * a.loss_scale;
}

void head_backward(weights w, gradients g, activations& a, bytes text) {
  for (int t = 0; t < T; ++t) a.p[t * V + text[t + 1]] -= 1;
  for (float& d : a.p) d *= a.loss_scale;
  const buffer dx = linear_backward(g[LOGITS], a.p, a.layer[L].x_norm, w[LOGITS], C, V);
  a.dx.assign(T * C, 0);
  norm_backward(a.dx, g[NORM], dx, a.layer[L].x, w[NORM]);
}

void forward(int unit, weights w, weights next, activations& a, bytes text) {
  unit == EMBED ? embed(w, next, a, text) : layer(w, next, a, unit - 1);
}

void backward(int unit, weights w, gradients g, activations& a, bytes text) {
  if (unit == HEAD) return head_backward(w, g, a, text);
  unit == EMBED ? embed_backward(g, a, text) : layer_backward(w, g, a, unit - 1);
}

// ---- Training.

// Returns the loss and adds to the gradients.
double micro_batch(auto& model, activations& a, bytes text) {
  auto w = model.acquire(EMBED, mfsdp::pass::forward);
  for (int unit = EMBED; unit < HEAD; ++unit) {
    auto next = model.acquire(unit + 1, mfsdp::pass::forward);
    forward(unit, w.pointers(), next.pointers(), a, text);
    w = std::move(next);  // releases the unit before
  }
  const double loss = head(w.pointers(), a, text);
  for (int unit = HEAD; unit >= EMBED; --unit) {
    w = model.acquire(unit, mfsdp::pass::backward);
    auto g = model.gradients(unit);
    g.zero();
    backward(unit, w.pointers(), g.pointers(), a, text);
    g.reduce();
  }
  return loss;
}

// The bytes of a file, or sums.
std::string read_text(const char* file) {
  std::string text;
  if (file != nullptr) {
    std::ifstream in(file, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (int i = 0; file == nullptr && i < 5000; ++i) {
    const int a = i * 37 % 91, b = i * 53 % 97;
    text += std::to_string(a) + " + " + std::to_string(b) + " = " + std::to_string(a + b) + "\n";
  }
  return text;
}

// A window of T bytes and the one after them.
bytes window_of(const std::string& text, std::size_t i) {
  return reinterpret_cast<bytes>(&text[i * 7919 % (text.size() - T)]);
}

int main(int argc, char** argv) {
  const int workers = argc > 1 ? std::atoi(argv[1]) : 4;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 20;
  const std::string text = read_text(argc > 3 ? argv[3] : nullptr);
  if (workers < 1 || steps < 1 || text.size() <= T) {
    std::fprintf(stderr, "usage: %s [workers] [steps] [text of more than %d bytes]\n", argv[0], T);
    return 1;
  }
  const float loss_scale = 1.0f / static_cast<float>(workers * MICRO * T);
  std::vector<double> losses(steps * workers);
  const auto print_loss = [&](int step) {
    double loss = 0;
    for (int worker = 0; worker < workers; ++worker) loss += losses[step * workers + worker];
    std::printf("step %d loss %.9g\n", step + 1, loss);
  };
  const auto warm_up = [](int step) { return step < 10 ? static_cast<float>(step + 1) / 10 : 1; };
  const mfsdp::adamw optimizer{.learning_rate = 3e-3, .beta2 = 0.95};

  const mfsdp::model_spec spec = model_of_units();
  mfsdp::thread_world{workers}.run([&](auto comm) {
    const int worker = comm.rank();
    mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, optimizer, {.prefetch = 2}};
    model.initialize([&](const auto& tensor, std::span<float> values, std::size_t first) {
      const std::size_t t = *spec.find_tensor(tensor.name);
      for (float& x : values) x = initial(t, first++, tensor.extents.size() == 1);
    });
    activations a{loss_scale};
    for (int step = 0; step < steps; ++step) {
      for (int micro = 0; micro < MICRO; ++micro) {
        const bytes window = window_of(text, (step * MICRO + micro) * workers + worker);
        losses[step * workers + worker] += micro_batch(model, a, window);
      }
      model.clip(1.0);
      model.step(warm_up(step));
    }
  });
  for (int step = 0; step < steps; ++step) print_loss(step);
}
