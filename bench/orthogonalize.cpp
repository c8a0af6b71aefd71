// Newton-Schulz with cpu_backend beside what one would write with Eigen, and beside the floor: the
// operations of the best method at the rate of multiply-adds that touch no memory.

#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mfsdp/backend/cpu.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/optimizer/newton_schulz.hpp"
#include "report.hpp"
#include "support/allocations.hpp"

#if MFSDP_X86_64
#include <immintrin.h>
#endif

namespace {

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view, mfsdp::newton_schulz_form;

constexpr std::array<matrix_shape, 15> shapes{{{64, 64},
                                               {128, 128},
                                               {192, 192},
                                               {224, 224},
                                               {240, 240},
                                               {256, 256},
                                               {288, 288},
                                               {320, 320},
                                               {512, 512},
                                               {768, 768},
                                               {768, 3072},
                                               {1024, 1024},
                                               {1024, 4096},
                                               {2048, 2048},
                                               {4096, 4096}}};
constexpr int steps = 5;

std::string name_of(matrix_shape shape) {
  return fmt::format("{}x{}", shape.rows, shape.cols);
}

float element(index_t i) {
  return std::sin(0.7f + 1.3f * static_cast<float>(i % 10007) + 0.1f * static_cast<float>(i % 911));
}

// ------------------------------------------------------------------------------------ what is
// timed

void with_mfsdp(benchmark::State& state, matrix_shape shape) {
  mfsdp::cpu_backend backend;
  auto x = backend.allocate<float>(shape.elements());
  auto workspace = backend.allocate<float>(newton_schulz_workspace(shape));
  backend.fill(workspace.span(), 0.0f);
  for (index_t i = 0; i < shape.elements(); ++i) x.span()[i] = element(i);
  for (auto _ : state) {
    newton_schulz(backend, matrix_view<float>(x.span().data(), shape), {.steps = steps},
                  workspace.span());
  }
}

void with_eigen(benchmark::State& state, matrix_shape shape) {
  const Eigen::MatrixXf gradient = Eigen::MatrixXf::NullaryExpr(
      shape.rows, shape.cols, [&](index_t i, index_t j) { return element(i * shape.cols + j); });
  const auto [a, b, c] = mfsdp::keller_coefficients[0];
  const auto [fa, fb, fc] =
      std::array{static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)};
  for (auto _ : state) {
    Eigen::MatrixXf x = gradient / (gradient.norm() + 1e-7f);
    Eigen::MatrixXf gram, polynomial, next;
    for (int step = 0; step < steps; ++step) {
      gram.noalias() = x * x.transpose();
      polynomial = fb * gram;
      polynomial.noalias() += fc * gram * gram;
      next = fa * x;
      next.noalias() += polynomial * x;
      x.swap(next);
    }
    benchmark::DoNotOptimize(x.data());
  }
}

// Fused multiply-adds on registers alone, in chains enough to hide their latency: as wide as the
// kernel's.
constexpr index_t chains = 12;
constexpr index_t rounds = 1 << 20;

#if MFSDP_X86_64
__attribute__((target("avx512f"))) void fma_avx512(benchmark::State& state) {
  __m512 sum[chains] = {};
  const __m512 x = _mm512_set1_ps(0.5f);
  for (auto _ : state) {
    for (index_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
      for (__m512& s : sum) s = _mm512_fmadd_ps(s, x, x);
    }
  }
  for (auto& s : sum) benchmark::DoNotOptimize(s);
}

__attribute__((target("avx2,fma"))) void fma_avx2(benchmark::State& state) {
  __m256 sum[chains] = {};
  const __m256 x = _mm256_set1_ps(0.5f);
  for (auto _ : state) {
    for (index_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
      for (__m256& s : sum) s = _mm256_fmadd_ps(s, x, x);
    }
  }
  for (auto& s : sum) benchmark::DoNotOptimize(s);
}
#endif

// Registers the loop of the processor's kernel; returns the operations of an iteration.
double add_fma_peak() {
#if MFSDP_X86_64
  const bool wide = mfsdp::best_product_kernel() == mfsdp::product_kernel::avx512;
  benchmark::RegisterBenchmark("fma", wide ? fma_avx512 : fma_avx2)->Iterations(1)->Repetitions(15);
  return 2.0 * (wide ? 16 : 8) * chains * rounds;
#else
  return 0;
#endif
}

// -------------------------------------------------------------------------------------- its timing

// Seconds of an iteration in each repetition, by the benchmark's name: of the thread's processor
// time, which other programs disturb less than the clock's.
class collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      seconds_[run.run_name.function_name].push_back(run.cpu_accumulated_time /
                                                     static_cast<double>(run.iterations));
    }
  }

  [[nodiscard]] double median(const std::string& name) const { return ::median(seconds_.at(name)); }

 private:
  std::map<std::string, std::vector<double>> seconds_;
};

// Some 40 ms in a repetition of a small shape, fewer repetitions of the large ones.
template <class Body>
void add(const std::string& name, matrix_shape shape, const Body& body) {
  const double operations =
      static_cast<double>(newton_schulz_flops(shape, steps, newton_schulz_form::direct));
  benchmark::RegisterBenchmark(name.c_str(), [body, shape](auto& state) { body(state, shape); })
      ->Iterations(std::max(index_t{1}, static_cast<index_t>(4e9 / operations)))
      ->Repetitions(operations > 1e12   ? 3
                    : operations > 1e11 ? 5
                                        : 15);
}

// The median of a benchmark in a process of its own, whose malloc nothing else has tuned.
double median_in_fresh_process(const std::string& name) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    collector seconds;
    benchmark::RunSpecifiedBenchmarks(&seconds, "^" + name + "/");
    const double median = seconds.median(name);
    _exit(write(ends[1], &median, sizeof(median)) == sizeof(median) ? 0 : 1);
  }
  close(ends[1]);
  double median = 0;
  const bool read_all = child > 0 && read(ends[0], &median, sizeof(median)) == sizeof(median);
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!read_all) throw std::runtime_error("no result of " + name);
  return median;
}

index_t floor_flops(matrix_shape shape) {
  return std::min(newton_schulz_flops(shape, steps, newton_schulz_form::direct),
                  newton_schulz_flops(shape, steps, newton_schulz_form::gram));
}

// Calls of operator new in one Newton-Schulz call after another.
long allocations_of_a_call() {
  mfsdp::cpu_backend backend;
  constexpr matrix_shape shape{256, 1024};
  auto x = backend.allocate<float>(shape.elements());
  auto workspace = backend.allocate<float>(newton_schulz_workspace(shape));
  backend.fill(x.span(), 1.0f);
  long before = 0;
  for (int call = 0; call < 2; ++call) {
    before = mfsdp_test::allocations;
    newton_schulz(backend, matrix_view<float>(x.span().data(), shape), {.steps = steps},
                  workspace.span());
  }
  return mfsdp_test::allocations - before;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Newton-Schulz of float matrices in five steps, one thread: mfsdp, plain Eigen, and the "
      "floor\n"
      "(symmetry-aware operations of the best method at the processor's rate of multiply-adds)."};
  index_t largest = 4096;
  std::string json_path;
  app.add_option("--largest", largest, "leave out shapes with a larger smaller side")
      ->check(CLI::Range(512, 4096))
      ->capture_default_str();
  app.add_option("--json", json_path, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);

  const mfsdp::product_kernel kernel = mfsdp::best_product_kernel();
  if (kernel == mfsdp::product_kernel::none) {
    fmt::print(stderr, "orthogonalize: this processor has no kernel to measure\n");
    return 1;
  }

  try {
    std::vector<matrix_shape> measured;
    for (const matrix_shape shape : shapes) {
      if (std::min(shape.rows, shape.cols) > largest) continue;
      measured.push_back(shape);
      add("mfsdp/" + name_of(shape), shape, with_mfsdp);
      add("eigen/" + name_of(shape), shape, with_eigen);
      if (shape.rows <= 1024) add("eigen_default_malloc/" + name_of(shape), shape, with_eigen);
    }
    const double fma_operations = add_fma_peak();

    // Everything takes turns, so that a change of the machine's speed meets all alike.
    std::string flag = "--benchmark_enable_random_interleaving=true";
    std::array<char*, 2> arguments{argv[0], flag.data()};
    int count = static_cast<int>(arguments.size());
    benchmark::Initialize(&count, arguments.data());
    collector seconds;
    // Eigen takes memory for each product. As it comes, malloc may return that to the system each
    // time, which costs small shapes much; Eigen is compared by what it does without that.
    std::map<std::string, double> default_malloc;
    for (const matrix_shape shape : measured) {
      if (shape.rows > 1024) continue;
      default_malloc[name_of(shape)] =
          median_in_fresh_process("eigen_default_malloc/" + name_of(shape));
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    benchmark::RunSpecifiedBenchmarks(&seconds, "^(fma|mfsdp|eigen)/");

    const double peak = fma_operations / seconds.median("fma") * 1e-9;
    nlohmann::ordered_json figures{
        {"kernel", kernel == mfsdp::product_kernel::avx512 ? "avx512" : "avx2"},
        {"fma_peak_gflops", peak}};
    fmt::print("kernel {}, {:.1f} GFLOP/s of multiply-adds in registers\n\n",
               figures["kernel"].get<std::string>(), peak);
    fmt::print("{:<10} {:>10} {:>9} {:>9} {:>10} {:>9} {:>14}\n", "shape", "mfsdp ms", "GFLOP/s",
               "to floor", "Eigen ms", "speedup", "default malloc");

    double floor_ratio = 0, speedup = std::numeric_limits<double>::infinity(), best = 0,
           slowest_small = std::numeric_limits<double>::infinity();
    for (const matrix_shape shape : measured) {
      const std::string name = name_of(shape);
      const double ours = seconds.median("mfsdp/" + name);
      const double eigen = seconds.median("eigen/" + name);
      const double rate = static_cast<double>(newton_schulz_flops(shape, steps)) / ours * 1e-9;
      const double to_floor = ours * peak * 1e9 / static_cast<double>(floor_flops(shape));
      const index_t n = std::min(shape.rows, shape.cols);
      best = std::max(best, rate);
      if (n >= 192 && n <= 320) slowest_small = std::min(slowest_small, rate);
      if (n >= 512) floor_ratio = std::max(floor_ratio, to_floor);
      if (n >= 512 && n <= 1024) speedup = std::min(speedup, eigen / ours);
      fmt::print("{:<10} {:>10.3f} {:>9.1f} {:>9.2f} {:>10.3f} {:>9.2f}", name, ours * 1e3, rate,
                 to_floor, eigen * 1e3, eigen / ours);
      figures["ms_" + name] = ours * 1e3;
      figures["gflops_" + name] = rate;
      figures["floor_ratio_" + name] = to_floor;
      figures["eigen_ms_" + name] = eigen * 1e3;
      figures["speedup_vs_eigen_" + name] = eigen / ours;
      if (default_malloc.contains(name)) {
        fmt::print(" {:>14.3f}", default_malloc[name] * 1e3);
        figures["eigen_default_malloc_ms_" + name] = default_malloc[name] * 1e3;
      }
      fmt::print("\n");
    }
    figures["floor_ratio_max"] = floor_ratio;
    figures["speedup_vs_eigen_min_512_1024"] = speedup;
    figures["cliff_rate_min"] = slowest_small / best;
    figures["allocations_per_step"] = allocations_of_a_call();
    fmt::print("\n");
    for (const char* key : {"floor_ratio_max", "speedup_vs_eigen_min_512_1024", "cliff_rate_min",
                            "allocations_per_step"}) {
      fmt::print("{:<30} {:.3g}\n", key, figures[key].get<double>());
    }

    write_figures(json_path, figures);
  } catch (const std::exception& e) {
    fmt::print(stderr, "orthogonalize: {}\n", e.what());
    return 1;
  }
  return 0;
}
