// One gather of a unit from its owners, and one sum to them, beside what MPI has for it:
//   mpirun -n 8 build/release/bench/collectives --ranks 2 4 8
//
// All contenders move the same unit of floats out of the same shards into a buffer in which each
// tensor stands where the trainer needs it, or sum such a buffer into the shards. A contender whose
// call wants another order copies, and the copy counts. They take turns, in a new order in every
// repetition; the time of a turn is that of the slowest rank after a barrier.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "mpi_job.hpp"
#include "report.hpp"

namespace {

using mfsdp::index_t, mfsdp::piece, mfsdp::buffer_layout, mfsdp::travel;

// ------------------------------------------------------------------------------------- owner maps

// A unit, and which rank owns what of it.
struct owner_map {
  std::string name;
  buffer_layout layout;
};

buffer_layout planned_unit(const mfsdp::model_spec& spec, int ranks, std::string_view unit) {
  const mfsdp::plan plan =
      make_plan(spec, ranks, mfsdp::owner_placement{}, mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}});
  return std::ranges::find(plan.groups, unit, &mfsdp::transfer_group::name)->parameters;
}

// GPT-2 124M.
buffer_layout gpt2_block(int ranks) {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("token", {50257, 768}).elementwise("position", {1024, 768});
  for (int layer = 0; layer < 12; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .vector("norm1.gain", 768)
        .vector("norm1.bias", 768)
        .matrix("qkv", 2304, 768)
        .vector("qkv.bias", 2304)
        .matrix("out", 768, 768)
        .vector("out.bias", 768)
        .vector("norm2.gain", 768)
        .vector("norm2.bias", 768)
        .matrix("up", 3072, 768)
        .vector("up.bias", 3072)
        .matrix("down", 768, 3072)
        .vector("down.bias", 768);
  }
  spec.unit("norm").vector("gain", 768).vector("bias", 768);
  return planned_unit(spec, ranks, "block.5");
}

// Llama 3 8B with every side a quarter as long: a layer of 54 MB.
buffer_layout llama_layer(int ranks) {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("token", {32064, 1024});
  for (int layer = 0; layer < 32; ++layer) {
    spec.unit(fmt::format("layer.{}", layer))
        .vector("norm1", 1024)
        .matrix("q", 1024, 1024)
        .matrix("k", 256, 1024)
        .matrix("v", 256, 1024)
        .matrix("o", 1024, 1024)
        .vector("norm2", 1024)
        .matrix("gate", 3584, 1024)
        .matrix("up", 3584, 1024)
        .matrix("down", 1024, 3584);
  }
  spec.unit("head").vector("norm", 1024).elementwise("weight", {32064, 1024});
  return planned_unit(spec, ranks, "layer.15");
}

constexpr index_t plain_elements = index_t{1} << 23;

buffer_layout one_owner(int ranks) {
  buffer_layout layout{plain_elements, std::vector<index_t>(std::size_t(ranks), 0), {}};
  layout.shard_elements[std::size_t(ranks) / 2] = plain_elements;
  layout.pieces = {{ranks / 2, 0, 0, plain_elements}};
  return layout;
}

buffer_layout even_split(int ranks) {
  const index_t share = plain_elements / ranks;
  buffer_layout layout{share * ranks, std::vector<index_t>(std::size_t(ranks), share), {}};
  for (int r = 0; r < ranks; ++r) layout.pieces.push_back({r, r * share, 0, share});
  return layout;
}

std::vector<owner_map> owner_maps(int ranks) {
  return {{"gpt2_block", gpt2_block(ranks)},
          {"llama_layer", llama_layer(ranks)},
          {"one_owner", one_owner(ranks)},
          {"even_split", even_split(ranks)}};
}

std::vector<index_t> owned_bytes(const buffer_layout& layout) {
  std::vector<index_t> bytes;
  for (int r = 0; r < std::ssize(layout.shard_elements); ++r) {
    bytes.push_back(mfsdp::elements_of(layout.pieces, r) * index_t{sizeof(float)});
  }
  return bytes;
}

// What `rank` sends by the theory of routes.hpp.
index_t formula(travel how, bool gathers, const std::vector<index_t>& owned, int rank) {
  const int ranks = static_cast<int>(owned.size());
  const auto of = [&](int r) { return owned[std::size_t(r)]; };
  index_t total = 0;
  for (const index_t bytes : owned) total += bytes;
  if (gathers) {
    return how == travel::direct ? (ranks - 1) * of(rank) : total - of((rank + 1) % ranks);
  }
  return how == travel::chain && rank + 1 < ranks ? total : total - of(rank);
}

// ------------------------------------------------------------------------------------- contenders

int to_int(index_t n) {
  if (n > std::numeric_limits<int>::max()) throw std::runtime_error("too many elements for MPI");
  return static_cast<int>(n);
}

struct contender {
  std::string name;
  std::function<void()> run;
};

// One rank's buffers for one owner map, and what moves between them. All sums are of small whole
// numbers, so that every order of adding gives the same.
class bout {
 public:
  bout(MPI_Comm comm, mfsdp::mpi_collective& ours, const buffer_layout& layout)
      : comm_(comm), ours_(ours), layout_(layout), rank_(ours.rank()), ranks_(ours.size()) {
    for (const index_t n : layout.shard_elements) {
      starts_.push_back(to_int(packed_));
      counts_.push_back(to_int(n));
      packed_ += n;
    }
    largest_ = *std::ranges::max_element(layout.shard_elements);
    full_.resize(std::size_t(layout.full_elements));
    shard_.resize(std::size_t(largest_));  // room for a padded call
    staging_.resize(std::size_t(std::max(packed_, largest_ * ranks_)));
    find_runs();
  }

  // Whether a call that wants owners in rank order can use the unit as it is.
  [[nodiscard]] bool in_rank_order() const { return in_rank_order_; }

  [[nodiscard]] std::vector<contender> gathers() {
    return {
        {"ours", [this] { finish(ours_.start_all_gather(shard(), full(), pieces(), "gather")); }},
        {"allgatherv",
         [this] {
           MPI_Allgatherv(shard_.data(), counts_[at(rank_)], MPI_FLOAT, landing(), counts_.data(),
                          starts_.data(), MPI_FLOAT, comm_);
           unpack(starts_);
         }},
        {"iallgatherv",
         [this] {
           MPI_Request request = MPI_REQUEST_NULL;
           MPI_Iallgatherv(shard_.data(), counts_[at(rank_)], MPI_FLOAT, landing(), counts_.data(),
                           starts_.data(), MPI_FLOAT, comm_, &request);
           MPI_Wait(&request, MPI_STATUS_IGNORE);
           unpack(starts_);
         }},
        {"padded_allgather",
         [this] {
           const int block = to_int(largest_);
           const bool even = in_rank_order_ && packed_ == largest_ * ranks_;
           MPI_Allgather(shard_.data(), block, MPI_FLOAT, even ? full_.data() : staging_.data(),
                         block, MPI_FLOAT, comm_);
           if (even) return;
           std::vector<int> starts;
           for (int r = 0; r < ranks_; ++r) starts.push_back(r * block);
           copy_out(starts);
         }},
        {"bcast_each",
         [this] {
           for (int r = 0; r < ranks_; ++r) {
             if (counts_[at(r)] == 0) continue;
             MPI_Bcast(broadcast_buffer(r), counts_[at(r)], MPI_FLOAT, r, comm_);
           }
           unpack(starts_, true);
         }},
        {"ibcast_all",
         [this] {
           std::vector<MPI_Request> requests;
           for (int r = 0; r < ranks_; ++r) {
             if (counts_[at(r)] == 0) continue;
             MPI_Ibcast(broadcast_buffer(r), counts_[at(r)], MPI_FLOAT, r, comm_,
                        &requests.emplace_back(MPI_REQUEST_NULL));
           }
           wait(requests);
           unpack(starts_, true);
         }},
        {"fan_out",
         [this] {
           std::vector<MPI_Request> requests;
           for (int i = 0; i < std::ssize(runs_); ++i) {
             const piece& run = runs_[at(i)];
             const int count = to_int(run.count);
             if (run.rank != rank_) {
               MPI_Irecv(full_.data() + run.full, count, MPI_FLOAT, run.rank, i, comm_,
                         &requests.emplace_back(MPI_REQUEST_NULL));
               continue;
             }
             for (int to = 0; to < ranks_; ++to) {
               if (to == rank_) continue;
               MPI_Isend(shard_.data() + run.local, count, MPI_FLOAT, to, i, comm_,
                         &requests.emplace_back(MPI_REQUEST_NULL));
             }
           }
           keep_own(shard_.data());
           wait(requests);
         }},
    };
  }

  [[nodiscard]] std::vector<contender> sums() {
    return {
        {"ours",
         [this] {
           finish(ours_.start_reduce_scatter(std::span<const float>(full_),
                                             std::span<float>(shard_), pieces(),
                                             mfsdp::reduce_into::write, "sum"));
         }},
        {"reduce_scatter",
         [this] {
           MPI_Reduce_scatter(packed(), shard_.data(), counts_.data(), MPI_FLOAT, MPI_SUM, comm_);
         }},
        {"ireduce_scatter",
         [this] {
           MPI_Request request = MPI_REQUEST_NULL;
           MPI_Ireduce_scatter(packed(), shard_.data(), counts_.data(), MPI_FLOAT, MPI_SUM, comm_,
                               &request);
           MPI_Wait(&request, MPI_STATUS_IGNORE);
         }},
        {"reduce_each",
         [this] {
           const float* from = packed();
           for (int r = 0; r < ranks_; ++r) {
             if (counts_[at(r)] == 0) continue;
             MPI_Reduce(from + starts_[at(r)], shard_.data(), counts_[at(r)], MPI_FLOAT, MPI_SUM, r,
                        comm_);
           }
         }},
    };
  }

  // Fills the input and spoils the output; then whether the output is what it should be.
  void prepare(bool gathers) {
    std::ranges::fill(gathers ? full_ : shard_, -1.0f);
    for (const piece& p : layout_.pieces) {
      for (index_t i = 0; i < p.count; ++i) {
        if (!gathers) {
          full_[at(p.full + i)] = term(p.full + i, rank_);
        } else if (p.rank == rank_) {
          shard_[at(p.local + i)] = term(p.full + i, p.rank);
        }
      }
    }
  }
  [[nodiscard]] bool right(bool gathers) const {
    for (const piece& p : layout_.pieces) {
      for (index_t i = 0; i < p.count; ++i) {
        if (gathers) {
          if (full_[at(p.full + i)] != term(p.full + i, p.rank)) return false;
        } else if (p.rank == rank_) {
          float sum = 0;
          for (int r = 0; r < ranks_; ++r) sum += term(p.full + i, r);
          if (shard_[at(p.local + i)] != sum) return false;
        }
      }
    }
    return true;
  }

 private:
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
  static float term(index_t element, int rank) {
    return static_cast<float>((element + 17 * rank) % 4093);
  }

  // Pieces that follow one another on both sides are one run.
  void find_runs() {
    runs_.assign(layout_.pieces.begin(), layout_.pieces.end());
    std::ranges::sort(runs_, {}, [](const piece& p) { return std::pair(p.rank, p.local); });
    std::vector<piece> merged;
    in_rank_order_ = true;
    for (const piece& p : runs_) {
      in_rank_order_ = in_rank_order_ && p.full == starts_[at(p.rank)] + p.local;
      if (!merged.empty() && merged.back().rank == p.rank &&
          merged.back().full + merged.back().count == p.full &&
          merged.back().local + merged.back().count == p.local) {
        merged.back().count += p.count;
      } else {
        merged.push_back(p);
      }
    }
    runs_ = merged;
  }

  [[nodiscard]] std::span<const piece> pieces() const { return layout_.pieces; }
  [[nodiscard]] std::span<const float> shard() const { return shard_; }
  [[nodiscard]] std::span<float> full() { return full_; }

  static void finish(mfsdp::mpi_collective::request request) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    request.wait(until);
    request.drain(until);
  }
  static void wait(std::vector<MPI_Request>& requests) {
    MPI_Waitall(to_int(std::ssize(requests)), requests.data(), MPI_STATUSES_IGNORE);
  }

  // Where owners in rank order arrive.
  [[nodiscard]] float* landing() { return in_rank_order_ ? full_.data() : staging_.data(); }
  [[nodiscard]] float* broadcast_buffer(int owner) {
    return owner == rank_ ? shard_.data() : landing() + starts_[at(owner)];
  }
  void keep_own(const float* shard) {
    for (const piece& run : runs_) {
      if (run.rank == rank_) std::copy_n(shard + run.local, run.count, full_.data() + run.full);
    }
  }
  void unpack(const std::vector<int>& starts, bool own_is_in_shard = false) {
    if (!in_rank_order_) copy_out(starts, own_is_in_shard);
    if (own_is_in_shard) keep_own(shard_.data());
  }
  void copy_out(const std::vector<int>& starts, bool without_own = false) {
    for (const piece& run : runs_) {
      if (without_own && run.rank == rank_) continue;
      std::copy_n(staging_.data() + starts[at(run.rank)] + run.local, run.count,
                  full_.data() + run.full);
    }
  }
  [[nodiscard]] const float* packed() {
    if (in_rank_order_) return full_.data();
    for (const piece& run : runs_) {
      std::copy_n(full_.data() + run.full, run.count,
                  staging_.data() + starts_[at(run.rank)] + run.local);
    }
    return staging_.data();
  }

  MPI_Comm comm_;
  mfsdp::mpi_collective& ours_;
  const buffer_layout& layout_;
  int rank_;
  int ranks_;
  std::vector<int> starts_, counts_;  // of each rank's shard where all follow one another
  index_t packed_ = 0;
  index_t largest_ = 0;
  bool in_rank_order_ = true;
  std::vector<piece> runs_;
  std::vector<float> full_, shard_, staging_;
};

// ----------------------------------------------------------------------------------------- timing

// Medians in milliseconds, in the order of the contenders.
std::vector<double> compete(MPI_Comm comm, const std::vector<contender>& contenders,
                            int repetitions) {
  const std::size_t n = contenders.size();
  std::vector<std::vector<double>> times(n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(1);  // the same on all ranks
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    std::ranges::shuffle(order, random);
    for (const std::size_t i : order) {
      MPI_Barrier(comm);
      const double start = MPI_Wtime();
      contenders[i].run();
      const double mine = MPI_Wtime() - start;
      double slowest = 0;
      MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, comm);
      times[i].push_back(1e3 * slowest);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& all : times) medians.push_back(median(std::move(all)));
  return medians;
}

bool all_of(MPI_Comm comm, bool here) {
  int mine = here ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm);
  return all != 0;
}

struct setting {
  std::vector<int> ranks;
  int repetitions = 21;
  mfsdp::message_options engine;
  std::string json_path;
};

struct score {
  std::vector<double> ratios;  // ours to the fastest
  nlohmann::ordered_json figures;
};

constexpr mfsdp::fabric cluster{.latency = 5e-6, .bandwidth = 11e9};  // 100 GbE

// The ways to travel that explain the bytes that the engine counted. Errors: std::runtime_error if
// there is none.
std::string ways_taken(MPI_Comm comm, bool gathers, const std::vector<index_t>& owned, int rank,
                       index_t sent) {
  std::string ways;
  for (const auto& [way, name] :
       {std::pair{travel::direct, "direct"}, {travel::chain, "chain"}, {travel::ring, "ring"}}) {
    if (gathers && way == travel::chain) continue;
    if (!all_of(comm, sent == formula(way, gathers, owned, rank))) continue;
    ways += fmt::format("{}{}", ways.empty() ? "" : " or ", name);
  }
  if (ways.empty()) throw std::runtime_error(fmt::format("{} bytes sent fit no formula", sent));
  return ways;
}

void print_models(bool gathers, const std::vector<index_t>& owned, index_t parcel) {
  const auto ms = [&](travel how) {
    return 1e3 * mfsdp::travel_seconds(how, owned, parcel, cluster);
  };
  const double others = static_cast<double>(owned.size() - 1);
  const double largest = static_cast<double>(*std::ranges::max_element(owned));
  const double padded = 1e3 * others * (cluster.latency + largest / cluster.bandwidth);
  fmt::print("  on 100 GbE, modelled, ms: {} {:.2f}, direct {:.2f}, padded {:.2f}\n",
             gathers ? "ring" : "chain", ms(gathers ? travel::ring : travel::chain),
             ms(travel::direct), padded);
}

void run_case(MPI_Comm comm, mfsdp::mpi_collective& ours, const owner_map& map, bool gathers,
              const setting& how, score& result) {
  const int ranks = ours.size();
  bout match(comm, ours, map.layout);
  const std::vector<contender> contenders = gathers ? match.gathers() : match.sums();
  const std::vector<index_t> owned = owned_bytes(map.layout);

  std::string ways;
  for (const contender& c : contenders) {
    match.prepare(gathers);
    const index_t before = ours.bytes_sent();
    c.run();
    if (c.name == "ours") {
      ways = ways_taken(comm, gathers, owned, ours.rank(), ours.bytes_sent() - before);
    }
    if (!all_of(comm, match.right(gathers))) {
      throw std::runtime_error(fmt::format("{}: '{}' gives a wrong result", map.name, c.name));
    }
  }

  const std::vector<double> ms = compete(comm, contenders, how.repetitions);
  const double fastest = *std::ranges::min_element(ms);
  result.ratios.push_back(ms[0] / fastest);
  if (ours.rank() != 0) return;

  const char* direction = gathers ? "gather" : "sum";
  fmt::print("{} of {}, {} ranks: {:.1f} MB, largest share {:.1f} MB{}\n", direction, map.name,
             ranks, 4e-6 * static_cast<double>(map.layout.full_elements),
             1e-6 * static_cast<double>(*std::ranges::max_element(owned)),
             match.in_rank_order() ? "" : ", owners not in rank order");
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    fmt::print("  {:<18} {:>9.2f} ms {:>7.2f}\n", contenders[i].name, ms[i], ms[i] / fastest);
    result.figures[fmt::format("{}_{}_{}_ms_{}", direction, map.name, contenders[i].name, ranks)] =
        ms[i];
  }
  fmt::print("  bytes that ours sent: as by the formula of {}\n", ways);
  print_models(gathers, owned, how.engine.parcel_bytes);
  result.figures[fmt::format("{}_{}_ratio_{}", direction, map.name, ranks)] = result.ratios.back();
}

// Who is not in a group leaves the cores to it.
void sleep_until_all_come() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void run(const mfsdp::mpi_world& job, setting how) {
  if (how.ranks.empty()) how.ranks = {job.size()};
  score result;
  for (const int ranks : how.ranks) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, job.rank() < ranks ? 0 : MPI_UNDEFINED, job.rank(), &comm);
    if (comm != MPI_COMM_NULL) {
      mfsdp::mpi_collective ours{mfsdp::mpi_communicator(comm), how.engine};
      for (const owner_map& map : owner_maps(ranks)) {
        for (const bool gathers : {true, false}) run_case(comm, ours, map, gathers, how, result);
      }
    }
    sleep_until_all_come();
    if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  }
  if (job.rank() != 0) return;

  double logarithms = 0;
  for (const double ratio : result.ratios) logarithms += std::log(ratio);
  const double geomean = std::exp(logarithms / static_cast<double>(result.ratios.size()));
  const double largest = *std::ranges::max_element(result.ratios);
  fmt::print("ours to the fastest of all: geometric mean {:.3f}, largest {:.3f}\n", geomean,
             largest);
  result.figures["geomean_ratio_to_fastest"] = geomean;
  result.figures["max_ratio_to_fastest"] = largest;
  write_figures(how.json_path, result.figures);
}

}  // namespace

int main(int argc, char** argv) {
  mfsdp::mpi_world job;
  CLI::App app{
      "Gathers of a unit from its owners and sums to them, beside MPI's own collectives.\n"
      "  mpirun -n 8 build/release/bench/collectives --ranks 2 4 8",
      "collectives"};
  setting how;
  app.add_option("--ranks", how.ranks, "numbers of ranks, up to those of the job")
      ->check(CLI::Range(1, job.size()));
  app.add_option("--repetitions", how.repetitions, "turns of each contender")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", how.json_path, "write the figures to this file");
  add_message_options(app, how.engine);
  return run_job(app, argc, argv, job, [&] { run(job, how); });
}
