// The calls of a context while they are recorded: what they were, and their arguments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/cuda/memory.hpp"
#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// A sequence of calls is met three times or more: measured while it runs, captured into a graph,
// then refreshed, which queues nothing and only writes the new arguments where the graph will read
// them. Calls of later times must be those of the first: the same kernels on as many elements,
// products and copies of the same operands. Kernel bodies and the factors of products may differ.
// Blocks of memory that the sequence takes are its own as long as this lives. Errors: usage_error
// that names the call.
class recorder {
 public:
  enum class phase { measure, capture, refresh };

  explicit recorder(memory_pool& pool) : pool_(pool) {}
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;
  ~recorder() {
    for (const block& own : blocks_) pool_.give(own.data, own.bytes);
  }

  // Starts the sequence anew, a first time again if it is measured; arguments go to `host`, from
  // where they will be at `device` when the graph runs. Both have arguments_size() bytes and may be
  // null while measuring.
  void start(phase now, std::byte* host, const std::byte* device) {
    phase_ = now;
    kept_ = false;
    if (now == phase::measure) calls_.clear();
    host_ = host;
    device_ = device;
    size_ = 0;
    next_call_ = 0;
    next_block_ = 0;
  }
  // The sequence is over, by an error or not: blocks that were not given back are their holders'.
  void stop() {
    kept_ = std::erase_if(blocks_, [](const block& own) { return own.out; }) != 0;
  }
  // After stop(), if there was no error: was it the whole sequence?
  void finish() const {
    if (next_call_ != calls_.size()) differ("the end");
    if (kept_) {
      throw usage_error("a recorded step keeps memory: allocate before it what outlives it");
    }
  }
  [[nodiscard]] std::size_t arguments_size() const { return size_; }

  // Whether calls are to be queued.
  [[nodiscard]] bool queues() const { return phase_ != phase::refresh; }
  // Whether arguments are read from where argument() says.
  [[nodiscard]] bool stores() const { return phase_ != phase::measure; }

  // A call is known by its name and the bits of what must not change.
  template <class... Fixed>
  void call(std::string_view name, const Fixed&... fixed) {
    std::vector<std::byte> bits;
    (append(bits, fixed), ...);
    if (phase_ == phase::measure) {
      calls_.emplace_back(name, std::move(bits));
    } else if (next_call_ >= calls_.size() || calls_[next_call_].first != name ||
               calls_[next_call_].second != bits) {
      differ(name);
    }
    ++next_call_;
  }

  // Where the argument of the call will be in device memory; null while measuring.
  template <class Argument>
  [[nodiscard]] const Argument* argument(const Argument& value) {
    static_assert(std::is_trivially_copyable_v<Argument>);
    const std::size_t at = size_;
    size_ += static_cast<std::size_t>(round_up(sizeof(Argument), 64));
    if (!stores()) return nullptr;
    std::memcpy(host_ + at, &value, sizeof value);
    return reinterpret_cast<const Argument*>(device_ + at);
  }

  // What is forbidden since it asks the host.
  [[noreturn]] static void refuse(std::string_view what) {
    throw usage_error(
        fmt::format("a recorded step cannot {}: the host would have to wait for the device", what));
  }

  // The blocks of the sequence, each taken once.
  [[nodiscard]] void* take(std::size_t bytes) {
    if (phase_ == phase::measure && next_block_ == blocks_.size()) {
      blocks_.push_back({pool_.take(bytes), bytes});
    } else if (next_block_ >= blocks_.size() || blocks_[next_block_].bytes != bytes) {
      differ("memory");
    }
    blocks_[next_block_].out = true;
    return blocks_[next_block_++].data;
  }
  // Whether the block is one of them, and then takes it back.
  [[nodiscard]] bool give(void* data) {
    const auto own = std::ranges::find(blocks_, data, &block::data);
    if (own == blocks_.end()) return false;
    own->out = false;
    return true;
  }

 private:
  struct block {
    void* data;
    std::size_t bytes;
    bool out = false;
  };

  template <class Fixed>
  static void append(std::vector<std::byte>& bits, const Fixed& fixed) {
    static_assert(std::has_unique_object_representations_v<Fixed>);
    const auto* const first = reinterpret_cast<const std::byte*>(&fixed);
    bits.insert(bits.end(), first, first + sizeof fixed);
  }
  [[noreturn]] void differ(std::string_view name) const {
    throw usage_error(
        fmt::format("call {} ({}) is not the one that was recorded: a recorded step makes the same "
                    "calls on the "
                    "same memory each time; record another one",
                    next_call_, name));
  }

  memory_pool& pool_;
  phase phase_ = phase::measure;
  std::byte* host_ = nullptr;
  const std::byte* device_ = nullptr;
  std::size_t size_ = 0;
  std::size_t next_call_ = 0;
  std::size_t next_block_ = 0;
  bool kept_ = false;
  std::vector<std::pair<std::string_view, std::vector<std::byte>>> calls_;
  std::vector<block> blocks_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
