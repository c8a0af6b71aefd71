// nccl_start: queues one operation on the stream of a communicator.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "mfsdp/collective/nccl_engine.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Where an output in host memory goes when the operation is over.
struct nccl_host_output {
  std::byte* to = nullptr;  // null: it is in device memory
  const std::byte* staged = nullptr;
  index_t element_size = 0;
  std::span<const piece> pieces{};
  bool gathers = false;  // at the offsets in `full`
  int only = -1;         // the pieces of this rank, if not negative

  void copy() const {
    for (const piece& p : pieces) {
      if (to == nullptr || (only >= 0 && p.rank != only) || p.count == 0) continue;
      const index_t at = (gathers ? p.full : p.local) * element_size;
      std::memcpy(to + at, staged + at, static_cast<std::size_t>(p.count * element_size));
    }
  }
};

// An operation while it is started, with the lock of the engine. What fails after it has begun to
// queue fails the engine, since the other ranks have started it.
class nccl_start {
 public:
  nccl_start(nccl_engine& engine, nccl_group& group, std::string_view kind, std::string_view label,
             std::span<const piece> pieces, std::size_t element_size)
      : engine_(engine), group_(group), guard_(engine.lock()) {
    engine_.throw_if_failed();
    here_.emplace(engine_.device());
    op_ = engine_.take(group_);
    op_->kind = kind;
    op_->label = label;
    op_->elements = 0;
    for (const piece& p : pieces) op_->elements += p.count;
    op_->element_size = element_size;
    op_->number = group_.started;
    op_->patience = engine_.options().timeout;
  }
  nccl_start(const nccl_start&) = delete;
  nccl_start& operator=(const nccl_start&) = delete;

  ~nccl_start() {
    if (op_ == nullptr) return;
    if (queued_) engine_.fail(op_->name() + " could not be started");
    op_->over = true;
    engine_.release(group_, std::move(op_));
  }

  [[nodiscard]] const nccl_group& group() const { return group_; }
  [[nodiscard]] cudaStream_t stream() const { return group_.stream.get(); }
  [[nodiscard]] sum_order sums() const { return engine_.options().sums; }

  // Operands as the device sees them. Host memory is copied through a block of the engine: an input
  // now, an output also when it is over. Errors: usage_error if that is too large.
  template <class T>
  [[nodiscard]] const T* input(std::span<const T> operand) {
    if (operand.empty() || is_device_memory(operand.data())) return operand.data();
    return reinterpret_cast<const T*>(stage(std::as_bytes(operand)).device.get());
  }
  template <class T>
  [[nodiscard]] T* output(std::span<T> operand, std::span<const piece> pieces, bool gathers,
                          int only) {
    if (operand.empty() || is_device_memory(operand.data())) return operand.data();
    const staging_block& block = stage(std::as_bytes(operand));
    back_ = {reinterpret_cast<std::byte*>(operand.data()),
             block.host.data(),
             sizeof(T),
             pieces,
             gathers,
             only};
    back_device_ = block.device.get();
    back_bytes_ = operand.size_bytes();
    return reinterpret_cast<T*>(block.device.get());
  }

  // Device memory of the communicator, for what comes in.
  [[nodiscard]] std::byte* scratch() {
    if (group_.scratch.get() == nullptr) {
      group_.scratch = device_memory(static_cast<std::size_t>(engine_.options().scratch_bytes));
    }
    return group_.scratch.get();
  }
  [[nodiscard]] index_t scratch_bytes() const { return engine_.options().scratch_bytes; }

  // What is queued from here on comes after what the compute stream has to do so far. After the
  // operands are known.
  void begin() {
    queued_ = true;
    ++group_.started;
    op_->ready.record(engine_.compute());
    op_->ready.precede(stream());
    engine_.follow_others(group_);
    if (group_.compares) tell();
    for (const auto& [host, device, bytes] : staged_) {
      cuda::require(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream()),
                    "cudaMemcpyAsync");
    }
  }

  // Calls of NCCL as one launch: f(communicator, stream, check), where each result is given to
  // check.
  template <class F>
  void grouped(const F& f) {
    ncclResult_t first = ncclGroupStart();
    const auto check = [&first](ncclResult_t code) {
      if (accepted(first) && !accepted(code)) first = code;
    };
    f(group_.comm, stream(), check);
    const ncclResult_t end = ncclGroupEnd();
    check(end);
    engine_.settle(group_, accepted(first) ? end : first, op_->name());
  }

  [[nodiscard]] std::pair<std::shared_ptr<nccl_operation>, nccl_host_output> finish() {
    if (back_.to != nullptr) {
      cuda::require(cudaMemcpyAsync(const_cast<std::byte*>(back_.staged), back_device_, back_bytes_,
                                    cudaMemcpyDeviceToHost, stream()),
                    "cudaMemcpyAsync");
    }
    op_->done.record(stream());
    engine_.add(group_, op_);
    return {std::exchange(op_, nullptr), back_};
  }

 private:
  struct copy_in {
    const std::byte* host;
    std::byte* device;
    std::size_t bytes;
  };

  // To all ranks what this one starts.
  void tell() {
    using text = call_text;
    const auto ranks = static_cast<std::size_t>(group_.size);
    op_->blocks.push_back(engine_.take_block(group_, (ranks + 1) * sizeof(text)));
    const staging_block& block = op_->blocks.back();
    const text mine = op_->text();
    std::memcpy(block.host.data(), mine.data(), sizeof mine);
    cuda::require(cudaMemcpyAsync(block.device.get(), block.host.data(), sizeof mine,
                                  cudaMemcpyHostToDevice, stream()),
                  "cudaMemcpyAsync");
    std::byte* all = block.device.get() + sizeof mine;
    grouped([&](ncclComm_t comm, cudaStream_t on, const auto& check) {
      for (int r = 0; r < group_.size; ++r) {
        std::byte* slot = all + static_cast<std::size_t>(r) * sizeof mine;
        check(ncclBroadcast(block.device.get(), slot, sizeof mine, ncclInt8, r, comm, on));
      }
    });
    cuda::require(cudaMemcpyAsync(block.host.data() + sizeof mine, all, ranks * sizeof mine,
                                  cudaMemcpyDeviceToHost, stream()),
                  "cudaMemcpyAsync");
    op_->heard.record(stream());
    op_->told = reinterpret_cast<const text*>(block.host.data() + sizeof mine);
  }

  const staging_block& stage(std::span<const std::byte> operand) {
    if (operand.size() > largest_host_operand) {
      throw usage_error(fmt::format(
          "{} '{}': an operand of {} bytes is in host memory, {} are allowed there; it is for "
          "control messages, data belongs in the memory of the device",
          op_->kind, op_->label, operand.size(), largest_host_operand));
    }
    op_->blocks.push_back(engine_.take_block(group_, operand.size()));
    const staging_block& block = op_->blocks.back();
    std::memcpy(block.host.data(), operand.data(), operand.size());
    staged_[staged_count_++] = {block.host.data(), block.device.get(), operand.size()};
    return block;
  }

  nccl_engine& engine_;
  nccl_group& group_;
  std::unique_lock<std::mutex> guard_;
  std::optional<cuda::device_scope> here_;
  std::shared_ptr<nccl_operation> op_;
  std::array<copy_in, 2> staged_{};
  std::size_t staged_count_ = 0;
  nccl_host_output back_;
  std::byte* back_device_ = nullptr;
  std::size_t back_bytes_ = 0;
  bool queued_ = false;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
