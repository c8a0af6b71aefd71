// Graphs: work of captured streams is kept, and done at each launch.
#include "emulation/machine.hpp"

namespace emulation {

void invalidate(capture& which) {
  which.valid = false;
}

cudaError_t refuse_in_capture() {
  for (const auto& each : the_machine().captures) {
    const bool mine = each->thread == std::this_thread::get_id();
    if (each->mode == cudaStreamCaptureModeRelaxed) continue;
    if (each->mode == cudaStreamCaptureModeThreadLocal && !mine) continue;
    invalidate(*each);
    return refuse(cudaErrorStreamCaptureUnsupported,
                  fmt::format("not while {} is captured", describe(each->origin)));
  }
  return cudaSuccess;
}

cudaError_t join_capture(cudaStream_t stream, const record& last) {
  if (!the_machine().captures.contains(last.captured)) {
    return refuse(cudaErrorCapturedEvent, "the event was recorded in a capture that has ended");
  }
  if (!stream->captured) {
    stream->captured = last.captured;
    stream->captured->streams.push_back(stream);
    stream->branch = last.captured->graph->branches++;
    stream->frontier.clear();
  } else if (stream->captured != last.captured) {
    return refuse(cudaErrorStreamCaptureMerge, "the event is of another capture");
  }
  stream->frontier.insert(stream->frontier.end(), last.nodes.begin(), last.nodes.end());
  return cudaSuccess;
}

namespace {

// Whether every node comes before the end of the stream that the capture began in.
bool joined(const capture& which) {
  std::vector<bool> reached(which.graph->nodes.size());
  for (const std::size_t node : which.origin->frontier) reached[node] = true;
  for (std::size_t node = reached.size(); node-- > 0;) {
    if (!reached[node]) return false;  // later nodes have said whom they come after
    for (const std::size_t earlier : which.graph->nodes[node].after) reached[earlier] = true;
  }
  return true;
}

// Each branch is a lane of its own; all of them begin where the launch is and the last one ended.
void replay(CUgraphExec_st& graph, timeline& now) {
  now.clock.join(graph.clock);
  const timeline start = now;
  std::vector<timeline> ends;
  for (const CUgraph_st::node& node : graph.nodes) {
    timeline line = start;
    line.lane = graph.lanes[node.branch];
    for (const std::size_t earlier : node.after) {
      line.clock.join(ends[earlier].clock);
      line.microseconds = std::max(line.microseconds, ends[earlier].microseconds);
    }
    perform(node.what, line);
    now.clock.join(line.clock);
    now.microseconds = std::max(now.microseconds, line.microseconds);
    ends.push_back(std::move(line));
  }
  graph.clock = now.clock;
}

}  // namespace

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return runtime_call("cudaStreamBeginCapture", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (stream->captured) {
      return refuse(cudaErrorIllegalState, describe(stream) + " is captured already");
    }
    machine& m = the_machine();
    stream->captured = std::make_shared<capture>();
    capture& made = *stream->captured;
    made.graph = m.graphs.make();
    made.graph->number = m.graphs.size();
    made.graph->destroyed = true;  // until it is given out
    made.graph->branches = 1;
    made.origin = stream;
    made.streams = {stream};
    made.mode = mode;
    made.thread = std::this_thread::get_id();
    stream->frontier.clear();
    stream->branch = 0;
    m.captures.insert(stream->captured);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return runtime_call("cudaStreamIsCapturing", [&](auto&) {
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    *status = !stream->captured         ? cudaStreamCaptureStatusNone
              : stream->captured->valid ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* result) {
  return runtime_call("cudaStreamEndCapture", [&](auto&) {
    *result = nullptr;
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    const std::shared_ptr<capture> ended = stream->captured;
    if (!ended || ended->origin != stream) {
      return refuse(cudaErrorIllegalState, "no capture began in " + describe(stream));
    }
    if (ended->mode != cudaStreamCaptureModeRelaxed &&
        ended->thread != std::this_thread::get_id()) {
      return refuse(cudaErrorStreamCaptureWrongThread, "the capture began in another thread");
    }
    const bool complete = joined(*ended);
    for (const cudaStream_t each : ended->streams) {
      each->captured.reset();
      each->frontier.clear();
    }
    the_machine().captures.erase(ended);
    if (!ended->valid) return cudaErrorStreamCaptureInvalidated;
    if (!complete) {
      return refuse(cudaErrorStreamCaptureUnjoined,
                    "a stream that joined the capture has work that nothing waits for");
    }
    ended->graph->destroyed = false;
    *result = ended->graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t graph, unsigned long long) {
  return runtime_call("cudaGraphInstantiate", [&](auto&) {
    machine& m = the_machine();
    if (!m.graphs.knows(graph) || graph->destroyed) {
      return refuse(cudaErrorInvalidValue, "no graph of this machine");
    }
    *result = m.executables.make();
    (*result)->number = m.executables.size();
    (*result)->nodes = graph->nodes;
    for (std::size_t i = 0; i < graph->branches; ++i) (*result)->lanes.push_back(new_lane());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return runtime_call("cudaGraphLaunch", [&](auto&) {
    machine& m = the_machine();
    if (const cudaError_t code = check(stream); code != cudaSuccess) return code;
    if (!m.executables.knows(graph) || graph->destroyed) {
      return refuse(cudaErrorInvalidResourceHandle, "no executable graph of this machine");
    }
    if (stream->captured) {
      invalidate(*stream->captured);
      return refuse(cudaErrorStreamCaptureUnsupported, "a graph in a graph is not emulated");
    }
    operation all;
    all.name = shared_name(fmt::format("graph {} in {}", graph->number, describe(stream)));
    all.microseconds = 0;
    all.body = [graph](timeline& now) { replay(*graph, now); };
    all.counted = &counters::graph_launches;
    for (const CUgraph_st::node& node : graph->nodes) {
      if (node.what.counted != nullptr) ++(m.counts.*node.what.counted);
    }
    return issue(stream, std::move(all));
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return runtime_call("cudaGraphDestroy", [&](auto&) {
    if (!the_machine().graphs.knows(graph) || graph->destroyed) {
      return refuse(cudaErrorInvalidValue, "no graph of this machine");
    }
    graph->destroyed = true;
    return cudaSuccess;
  });
}

// Launches that are queued are still done.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return runtime_call("cudaGraphExecDestroy", [&](auto&) {
    if (!the_machine().executables.knows(graph) || graph->destroyed) {
      return refuse(cudaErrorInvalidResourceHandle, "no executable graph of this machine");
    }
    graph->destroyed = true;
    return cudaSuccess;
  });
}
