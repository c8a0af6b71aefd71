// Saving and loading GPT-2 124M with its optimizer states, beside plain write and read of as many
// bytes by as many threads, in turns in one run. Both sync what they write; both read once with
// nothing in the page cache and once with everything.

#include "mfsdp/checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "report.hpp"

namespace {

using mfsdp::index_t;
namespace fs = std::filesystem;

struct setting {
  int ranks = 2;
  index_t layers = 12;
  int rounds = 5;
  std::string folder = "build/checkpoint_bench";
  std::string json_path;
};

mfsdp::model_spec gpt2(index_t layers) {
  constexpr index_t width = 768;
  mfsdp::model_spec spec;
  spec.unit("embedding")
      .elementwise("token", {50257, width})
      .elementwise("position", {1024, width});
  for (index_t layer = 0; layer < layers; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .vector("norm1.gain", width)
        .vector("norm1.bias", width)
        .matrix("qkv", 3 * width, width, {.row_groups = 3})
        .vector("qkv.bias", 3 * width)
        .matrix("out", width, width)
        .vector("out.bias", width)
        .vector("norm2.gain", width)
        .vector("norm2.bias", width)
        .matrix("up", 4 * width, width)
        .vector("up.bias", 4 * width)
        .matrix("down", width, 4 * width)
        .vector("down.bias", width);
  }
  spec.unit("head").vector("norm.gain", width).vector("norm.bias", width);
  return spec;
}

double seconds_of(const std::function<void()>& work) {
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  work();
  return std::chrono::duration<double>(clock::now() - start).count();
}

// ------------------------------------------------------------------------------------------- plain

// A file by system calls alone. Errors: std::system_error.
class plain_file {
 public:
  plain_file(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags, 0644)) {
    require(descriptor_ >= 0);
  }
  ~plain_file() { ::close(descriptor_); }
  plain_file(const plain_file&) = delete;
  plain_file& operator=(const plain_file&) = delete;

  // All of a buffer, as much at a time as a checkpoint does.
  void write(const std::vector<char>& bytes) const {
    for_each_chunk(bytes.size(), [&](std::size_t at, std::size_t count) {
      require(::write(descriptor_, bytes.data() + at, count) == static_cast<ssize_t>(count));
    });
    require(::fsync(descriptor_) == 0);
  }
  void read(std::vector<char>& bytes) const {
    for_each_chunk(bytes.size(), [&](std::size_t at, std::size_t count) {
      require(::read(descriptor_, bytes.data() + at, count) == static_cast<ssize_t>(count));
    });
  }
  // What is synced already leaves the page cache.
  void forget() const { require(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED) == 0); }

 private:
  static void require(bool well) {
    if (!well) throw std::system_error(errno, std::generic_category(), "plain file");
  }
  static void for_each_chunk(std::size_t size,
                             const std::function<void(std::size_t, std::size_t)>& f) {
    constexpr auto chunk = static_cast<std::size_t>(mfsdp::detail::checkpoint_chunk);
    for (std::size_t at = 0; at < size; at += chunk) f(at, std::min(chunk, size - at));
  }

  int descriptor_;
};

void forget_folder(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) plain_file(entry.path(), O_RDONLY).forget();
  }
}

// ------------------------------------------------------------------------------------------ rounds

constexpr std::array<const char*, 3> kinds{"save", "load_cold", "load_warm"};

struct times {
  std::map<std::string, std::vector<double>> plain, ours;
  std::int64_t bytes = 0;
};

// Every round does all of it once, so that a change of the disk's speed meets both alike.
times measure(const setting& how) {
  times result;
  mfsdp::thread_world(how.ranks).run([&](auto comm) {
    mfsdp::sharded_model model{gpt2(how.layers), comm, mfsdp::owner_placement{},
                               mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}}};
    model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, index_t first) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(static_cast<std::uint64_t>(first) + i) * 1e-9f;
      }
    });
    std::int64_t own = 0;
    model.persistence().for_each_held([&](const mfsdp::held_part&, auto values) {
      own += static_cast<std::int64_t>(values.size_bytes());
    });
    std::vector<char> buffer(static_cast<std::size_t>(own), 'x');
    const bool speaks = comm.rank() == 0;
    const double total = model.sum(static_cast<double>(own));
    if (speaks) result.bytes = static_cast<std::int64_t>(total);

    const std::string root = how.folder + "/checkpoints";
    const std::string path = fmt::format("{}/plain.{}", how.folder, comm.rank());
    // From when all are there until all are done.
    const auto timed = [&](std::map<std::string, std::vector<double>>& into, const char* kind,
                           const std::function<void()>& work) {
      (void)model.sum(0);
      const double seconds = seconds_of([&] {
        work();
        (void)model.sum(0);
      });
      if (speaks) into[kind].push_back(seconds);
    };
    const auto forget = [&](const std::string& what) {
      (void)model.sum(0);
      if (speaks) forget_folder(what);
      (void)model.sum(0);
    };
    for (int round = 0; round < how.rounds; ++round) {
      fs::remove(path);
      timed(result.plain, "save",
            [&] { plain_file(path, O_WRONLY | O_CREAT | O_EXCL).write(buffer); });
      if (speaks) fs::remove_all(root);
      (void)model.sum(0);
      timed(result.ours, "save", [&] { mfsdp::save(model, root); });
      for (const char* kind : {"load_cold", "load_warm"}) {
        if (kind == kinds[1]) forget(how.folder);
        timed(result.plain, kind, [&] { plain_file(path, O_RDONLY).read(buffer); });
        timed(result.ours, kind, [&] { mfsdp::load(model, root); });
      }
      if (speaks) fmt::print(stderr, "\rround {}/{} ", round + 1, how.rounds);
    }
    if (speaks) fmt::print(stderr, "\n");
  });
  return result;
}

void report(const setting& how, const times& all) {
  nlohmann::ordered_json figures{
      {"ranks", how.ranks}, {"rounds", how.rounds}, {"bytes", all.bytes}};
  const double gigabytes = static_cast<double>(all.bytes) * 1e-9;
  fmt::print("{:.2f} GB by {} threads, medians of {} rounds\n", gigabytes, how.ranks, how.rounds);
  fmt::print("{:<10} {:>12} {:>18} {:>12}\n", "", "plain GB/s", "checkpoint GB/s", "time ratio");
  std::map<std::string, double> ratio;
  for (const std::string kind : kinds) {
    const std::vector<double>& plain = all.plain.at(kind);
    const std::vector<double>& ours = all.ours.at(kind);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < plain.size(); ++i) ratios.push_back(ours[i] / plain[i]);
    ratio[kind] = median(ratios);
    fmt::print("{:<10} {:>12.2f} {:>18.2f} {:>12.3f}\n", kind, gigabytes / median(plain),
               gigabytes / median(ours), ratio[kind]);
    figures["plain_" + kind + "_gb_per_second"] = gigabytes / median(plain);
    figures[kind + "_gb_per_second"] = gigabytes / median(ours);
  }
  figures["save_ratio"] = ratio["save"];
  figures["load_ratio"] = std::max(ratio["load_cold"], ratio["load_warm"]);
  figures["load_ratio_cold"] = ratio["load_cold"];
  figures["load_ratio_warm"] = ratio["load_warm"];
  write_figures(how.json_path, figures);
}

}  // namespace

int main(int argc, char** argv) {
  setting how;
  CLI::App app{"Saving and loading GPT-2 124M with states, beside plain write and read."};
  app.add_option("--ranks", how.ranks, "ranks, as threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", how.layers, "blocks; fewer for a quick look")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", how.rounds, "of everything")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--folder", how.folder, "where to write, on the disk that is to be measured")
      ->capture_default_str();
  app.add_option("--json", how.json_path, "write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    fs::create_directories(how.folder);
    report(how, measure(how));
    fs::remove_all(how.folder);
  } catch (const std::exception& e) {
    fmt::print(stderr, "checkpoint: {}\n", e.what());
    return 1;
  }
  return 0;
}
