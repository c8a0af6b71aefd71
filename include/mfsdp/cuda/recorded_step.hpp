// A sequence of calls of a backend as a CUDA graph: one launch in place of hundreds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "mfsdp/cuda/context.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// Updates of small matrices are bound by the time to launch kernels, some microseconds each. A
// recorded step takes it once:
//
//   cuda::recorded_step step(backend.context());
//   for (...) step.run([&] { rule.update(backend, states, parameter, gradient, context); });
//
// The first run queues the calls as ever and measures them. The second captures them into a graph,
// which it launches. Later ones call the function too, so that rates and step counts change as they
// should, but its calls only write their arguments to where the graph reads them, and must be those
// of the first run on the same memory. What asks the host cannot be recorded: copies from and to
// its memory, sum_of_squares, lists of permute, decompositions. While run() runs, no other thread
// may use the backend or copies of it. After an error the device has done nothing of that run,
// unless it was the first. Errors: usage_error that names the call that differs, device_error.
class recorded_step {
 public:
  explicit recorded_step(std::shared_ptr<context> on)
      : context_(std::move(on)), recorder_(context_->pool()) {}
  recorded_step(const recorded_step&) = delete;
  recorded_step& operator=(const recorded_step&) = delete;
  ~recorded_step() {
    for (const std::optional<slot>& used : slots_) {
      if (used) (void)cudaEventSynchronize(used->copied.get());
    }
    if (device_ != nullptr) context_->give(device_, size_);
  }

  template <class Step>
  void run(Step&& step) {
    const device_scope here(context_->device());
    if (!measured_) {
      met(recorder::phase::measure, nullptr, step);
      size_ = std::max(recorder_.arguments_size(), smallest_);
      measured_ = true;
      return;
    }
    if (device_ == nullptr) device_ = static_cast<std::byte*>(context_->take(size_));
    std::optional<slot>& free = slots_[next_slot_];
    if (!free) {
      free.emplace(size_);
    } else if (!free->copied.done()) {
      free->copied.wait();
    }
    if (!graph_) {
      capture(free->arguments.data(), step);
    } else {
      met(recorder::phase::refresh, free->arguments.data(), step);
    }
    require(cudaMemcpyAsync(device_, free->arguments.data(), size_, cudaMemcpyHostToDevice,
                            context_->stream()),
            "cudaMemcpyAsync");
    free->copied.record(context_->stream());
    require(cudaGraphLaunch(graph_.get(), context_->stream()), "cudaGraphLaunch");
    next_slot_ = (next_slot_ + 1) % slots_.size();
  }

 private:
  // Arguments on their way: the host may be as many runs ahead as there are slots.
  struct slot {
    explicit slot(std::size_t bytes) : arguments(bytes) {}
    pinned_buffer<std::byte> arguments;
    event copied;
  };
  struct destroy {
    void operator()(cudaGraph_t old) const { (void)cudaGraphDestroy(old); }
    void operator()(cudaGraphExec_t old) const { (void)cudaGraphExecDestroy(old); }
  };
  template <class Handle>
  using owner = std::unique_ptr<std::remove_pointer_t<Handle>, destroy>;

  struct recording {
    recording(context& on, recorder& by) : context_(on), recorder_(by) { on.record(&by); }
    ~recording() {
      context_.record(nullptr);
      recorder_.stop();
    }
    recording(const recording&) = delete;
    recording& operator=(const recording&) = delete;
    context& context_;
    recorder& recorder_;
  };

  template <class Step>
  void met(recorder::phase phase, std::byte* arguments, Step& step) {
    recorder_.start(phase, arguments, device_);
    {
      const recording scope(*context_, recorder_);
      step();
    }
    recorder_.finish();
  }

  template <class Step>
  void capture(std::byte* arguments, Step& step) {
    const cudaStream_t stream = context_->stream();
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      met(recorder::phase::capture, arguments, step);
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &captured);
      owner<cudaGraph_t>{captured};
      throw;
    }
    require(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    const owner<cudaGraph_t> graph(captured);
    cudaGraphExec_t fresh = nullptr;
    require(cudaGraphInstantiate(&fresh, graph.get(), 0), "cudaGraphInstantiate");
    graph_.reset(fresh);
  }

  // A step of copies alone has no arguments, and is recorded like any other.
  static constexpr std::size_t smallest_ = 64;

  std::shared_ptr<context> context_;
  recorder recorder_;
  bool measured_ = false;
  std::size_t size_ = 0;
  std::byte* device_ = nullptr;
  std::array<std::optional<slot>, 4> slots_;
  std::size_t next_slot_ = 0;
  owner<cudaGraphExec_t> graph_;
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
