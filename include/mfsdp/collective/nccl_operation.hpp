// nccl_operation: options of the NCCL engine, and its records of communicators and of what has been
// started in them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/collective/nccl_api.hpp"
#include "mfsdp/collective/nccl_memory.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// In which order ranks are added.
//   rank   0, 1, 2, ..., in the type of the sum: equal bits whoever owns what, and on every engine.
//          Terms are sent to the owner as they are, which adds them
//   nccl   as NCCL does it, by ncclReduce and ncclAllReduce, in the type that travels; depends on
//          who owns what and on the ring. Sums of another type than that of the terms are refused
enum class sum_order { rank, nccl };

// Equal on all ranks, but for the stream.
struct nccl_options {
  // How long ranks are waited for: at the creation of a communicator, by what is started and not
  // waited for yet, and by destructors. Waits bring deadlines of their own. Positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
  sum_order sums = sum_order::rank;
  // Where operands are computed and used: a stream of the device, which outlives the communicator,
  // or one of its own (compute_stream()).
  std::optional<cudaStream_t> compute{};
  // Device memory for terms on their way into sums, for each communicator that sums; sums are made
  // in parts if it is too small. 64 KiB at least.
  index_t scratch_bytes = index_t{32} << 20;
  // Whether ranks tell each other what they start: a gather of 128 bytes from each, ahead of every
  // operation. NCCL itself would pair operations that differ, and mix their data or hang.
  bool compare_calls = checked;
};

namespace detail {

// Operands in host memory are copied as a whole through memory of the engine: control messages.
inline constexpr std::size_t largest_host_operand = std::size_t{64} << 20;

// What a rank tells the others that it starts.
using call_text = std::array<char, 128>;

// Something started. Its record is used again when it is over and its request gone.
struct nccl_operation {
  std::string_view kind{};
  std::string label{};
  index_t elements = 0;
  std::size_t element_size = 0;
  std::int64_t number = 0;  // of its communicator, from 0
  cuda::event ready{};      // of the compute stream: its operands may be touched
  cuda::event done{};
  std::chrono::milliseconds patience{};  // from where nothing of this rank holds it up
  std::optional<deadline> until{};
  std::vector<staging_block> blocks{};
  const call_text* told = nullptr;  // what every rank has started, if that is compared,
  cuda::event heard{};              // after this
  bool over = false;                // done
  bool released = false;            // its request is gone

  [[nodiscard]] std::string name() const {
    return fmt::format("{} '{}' (collective {}, {} elements of {} bytes)", kind, label, number,
                       elements, element_size);
  }
  // Cut at the end if the label is long; its pieces count as a whole.
  [[nodiscard]] call_text text() const {
    call_text all{};
    const std::string whole = fmt::format("{} {} x {} '{}'", kind, elements, element_size, label);
    whole.copy(all.data(), all.size() - 1);
    return all;
  }
};

// A communicator and its queue.
struct nccl_group {
  ncclComm_t comm = nullptr;  // null after a failure
  bool borrowed = false;
  bool compares = false;  // what ranks start, once it is known that all do
  int rank = 0;
  int size = 1;
  cuda::stream stream{};
  device_memory scratch{};
  std::int64_t started = 0;
  std::deque<std::shared_ptr<nccl_operation>> under_way{};
  std::vector<std::shared_ptr<nccl_operation>> idle{};
  std::vector<staging_block> blocks{};  // that nobody uses
};

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
