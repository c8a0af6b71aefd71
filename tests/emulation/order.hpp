// Who comes after whom: vector clocks, and which operations have touched a range of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace emulation {

// For each lane (a stream, a branch of a graph), up to which of its operations all is done.
class vector_clock {
 public:
  [[nodiscard]] std::uint64_t operator[](std::size_t lane) const {
    return lane < times_.size() ? times_[lane] : 0;
  }
  void tick(std::size_t lane, std::uint64_t time) {
    if (lane >= times_.size()) times_.resize(lane + 1);
    times_[lane] = time;
  }
  void join(const vector_clock& other) {
    times_.resize(std::max(times_.size(), other.times_.size()));
    for (std::size_t i = 0; i < other.times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> times_;
};

// An operation that touched something.
struct touch {
  std::size_t lane;
  std::uint64_t time;
  std::shared_ptr<const std::string> operation;

  [[nodiscard]] bool before(const vector_clock& now) const { return now[lane] >= time; }
};

// The last write and the reads since, for each byte of an allocation.
class touch_history {
 public:
  explicit touch_history(std::size_t bytes) : cells_{{0, {bytes, {}, {}}}} {}

  struct conflict {
    touch earlier;
    bool wrote;
  };

  // A read at `now`: a write that is not ordered before it, if any.
  std::optional<conflict> read(std::size_t first, std::size_t last, const touch& by,
                               const vector_clock& now);

  // A write at `now`: a write or a read that is not ordered before it, if any.
  std::optional<conflict> write(std::size_t first, std::size_t last, const touch& by,
                                const vector_clock& now);

  // Any touch of the whole that is not ordered before `now`.
  [[nodiscard]] std::optional<conflict> pending(const vector_clock& now) const;

  // Whether every byte has been written.
  [[nodiscard]] bool written(std::size_t first, std::size_t last) const;

 private:
  struct cell {
    std::size_t end;
    std::optional<touch> write;
    std::vector<touch> reads;
  };
  using cells = std::map<std::size_t, cell>;

  static std::optional<conflict> find(const cell&, bool reads_too, const vector_clock&);
  cells::iterator split(std::size_t at);

  cells cells_;  // by first byte, without gaps
};

}  // namespace emulation
