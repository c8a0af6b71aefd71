// The smallest parts that a sharded_model takes, one member at a time, so that a test can leave one
// out. For tests that compile and never run.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/collective/self.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/placement/replicated.hpp"
#include "mfsdp/sharded_model.hpp"

namespace archetype {

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view, mfsdp::piece;

template <class... Part>
struct composed : Part... {};

// -------------------------------------------------------------------------------------- optimizer

struct with_name {
  static constexpr std::string_view name = "archetype";
};
struct with_whole_matrix {
  static constexpr bool whole_matrix = false;
};
struct with_flops {
  index_t flops(matrix_shape) const;
};
struct with_states {
  std::array<mfsdp::state_spec, 1> states(matrix_shape) const;
};
struct with_workspace_size {
  index_t workspace_size(matrix_shape) const;
};
struct with_update {
  template <class B>
  void update(B&, const std::array<std::span<float>, 1>&, matrix_view<float>,
              matrix_view<const float>, const mfsdp::update_context<float>&) const;
};

using optimizer = composed<with_name, with_whole_matrix, with_flops, with_states,
                           with_workspace_size, with_update>;

// -------------------------------------------------------------------------------------- placement

struct with_whole_matrices {
  static constexpr bool whole_matrices = true;
};
struct with_replicated {
  static constexpr bool replicated = false;
};
struct with_place {
  std::vector<std::vector<mfsdp::segment>> place(std::span<const mfsdp::placement_item>, int) const;
};

using placement = composed<with_name, with_whole_matrices, with_replicated, with_place>;

// ------------------------------------------------------------------------------------- collective

struct request {
  bool test();
  void wait(mfsdp::deadline);
  void drain(mfsdp::deadline);
};
struct with_request {
  using request = archetype::request;
};
struct with_rank {
  int rank() const;
};
struct with_size {
  int size() const;
};
struct with_all_gather {
  template <class T>
  request start_all_gather(std::span<const T>, std::span<T>, std::span<const piece>,
                           std::string_view);
};
struct with_reduce_scatter {
  template <class From, class To>
  request start_reduce_scatter(std::span<const From>, std::span<To>, std::span<const piece>,
                               mfsdp::reduce_into, std::string_view);
};
struct with_all_reduce {
  template <class From, class To>
  request start_all_reduce(std::span<const From>, std::span<To>, std::span<const piece>,
                           mfsdp::reduce_into, std::string_view);
};

using collective = composed<with_request, with_rank, with_size, with_all_gather,
                            with_reduce_scatter, with_all_reduce>;

// ---------------------------------------------------------------------------------------- backend

template <class T>
struct memory {
  std::span<T> span();
  std::span<const T> span() const;
};
struct with_allocate {
  template <class T>
  memory<T> allocate(index_t);
};
struct with_fill {
  void fill(std::span<float>, float);
};
struct with_copy {
  void copy(std::span<const float>, std::span<float>);
};
struct with_multiply {
  void multiply(float, matrix_view<const float>, mfsdp::transpose, matrix_view<const float>,
                mfsdp::transpose, float, matrix_view<const float>, matrix_view<float>);
};
struct with_multiply_symmetric {
  void multiply_symmetric(float, matrix_view<const float>, mfsdp::transpose,
                          matrix_view<const float>, mfsdp::transpose, float,
                          matrix_view<const float>, matrix_view<float>);
};
struct with_transform {
  template <class Kernel, class... T>
  void transform(const Kernel&, std::span<T>...) {}  // a body, since kernels are local types
};
struct with_transform_by_sum {
  template <class Kernel, class... T>
  void transform_by_sum(const Kernel&, std::span<const float>, std::span<T>...) {}
};
struct with_sum_of_squares {
  double sum_of_squares(std::span<const float>);
};

using backend =
    composed<with_allocate, with_fill, with_copy, with_multiply, with_multiply_symmetric,
             with_transform, with_transform_by_sum, with_sum_of_squares>;

// ------------------------------------------------------------------------------------------ model

// A mesh that takes anything, so that a fault of a collective meets the door and not mfsdp::mesh.
template <class Shard, class Replicate = mfsdp::self>
struct axes {
  Shard shard;
  Replicate replicate{};
  mfsdp::self site{};
};

// Constructs and uses a model as a trainer would.
template <class Collective, class Placement, class Optimizer, class Backend = backend,
          class Replicate = mfsdp::self>
void train(Collective comm, Placement where, Optimizer rule, Backend memory = {},
           Replicate copies = {}) {
  mfsdp::sharded_model<axes<Collective, Replicate>, Placement, Optimizer, Backend> model{
      mfsdp::model_spec{}, axes<Collective, Replicate>{comm, copies}, where, rule, {}, memory};
  model.initialize([](const mfsdp::tensor_spec&, std::span<float>, index_t) {});
  for (const std::size_t unit : model.forward_order()) {
    (void)model.acquire(unit, mfsdp::pass::forward);
    model.gradients(unit).reduce();
  }
  model.clip(1);
  model.step();
}

}  // namespace archetype
