// The smallest Optimizer, and for each requirement a type that fails in this one alone.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "mfsdp/concepts.hpp"
#include "support/archetypes.hpp"

namespace optimizer_concept_test {

namespace {

using mfsdp::Optimizer;
using mfsdp::update_context, mfsdp::UpdatesOn;

using namespace archetype;
using backend_archetype = archetype::backend;

static_assert(UpdatesOn<composed<with_name, with_whole_matrix, with_flops, with_states,
                                 with_workspace_size, with_update>,
                        backend_archetype>);

static_assert(
    !Optimizer<composed<with_whole_matrix, with_flops, with_states, with_workspace_size>>);
static_assert(!Optimizer<composed<with_name, with_flops, with_states, with_workspace_size>>);
static_assert(!Optimizer<composed<with_name, with_whole_matrix, with_states, with_workspace_size>>);
static_assert(!Optimizer<composed<with_name, with_whole_matrix, with_flops, with_workspace_size>>);
static_assert(!Optimizer<composed<with_name, with_whole_matrix, with_flops, with_states>>);
static_assert(
    !UpdatesOn<composed<with_name, with_whole_matrix, with_flops, with_states, with_workspace_size>,
               backend_archetype>);

struct numeric_name {
  static constexpr int name = 1;
};
struct whole_matrix_text {
  static constexpr std::string_view whole_matrix = "no";
};
struct float_flops {
  double flops(matrix_shape) const;
};
struct mutable_flops {
  index_t flops(matrix_shape);
};
struct dynamic_states {
  std::span<const mfsdp::state_spec> states(matrix_shape) const;
};
struct narrow_workspace {
  int workspace_size(matrix_shape) const;
};
struct writes_gradient {
  void update(backend_archetype&, const std::array<std::span<float>, 1>&, matrix_view<float>,
              matrix_view<float>, const update_context<float>&) const;
};
struct other_state_count {
  void update(backend_archetype&, const std::array<std::span<float>, 2>&, matrix_view<float>,
              matrix_view<const float>, const update_context<float>&) const;
};
struct mutable_update {
  void update(backend_archetype&, const std::array<std::span<float>, 1>&, matrix_view<float>,
              matrix_view<const float>, const update_context<float>&);
};
struct returning_update {
  bool update(backend_archetype&, const std::array<std::span<float>, 1>&, matrix_view<float>,
              matrix_view<const float>, const update_context<float>&) const;
};
struct not_copyable {
  not_copyable() = default;
  not_copyable(const not_copyable&) = delete;
};

template <class Name = with_name, class Whole = with_whole_matrix, class Flops = with_flops,
          class States = with_states, class Workspace = with_workspace_size>
using optimizer = composed<Name, Whole, Flops, States, Workspace>;

static_assert(Optimizer<optimizer<>>);
static_assert(!Optimizer<optimizer<numeric_name>>);
static_assert(!Optimizer<optimizer<with_name, whole_matrix_text>>);
static_assert(!Optimizer<optimizer<with_name, with_whole_matrix, float_flops>>);
static_assert(!Optimizer<optimizer<with_name, with_whole_matrix, mutable_flops>>);
static_assert(!Optimizer<optimizer<with_name, with_whole_matrix, with_flops, dynamic_states>>);
static_assert(
    !Optimizer<optimizer<with_name, with_whole_matrix, with_flops, with_states, narrow_workspace>>);
static_assert(!Optimizer<composed<optimizer<>, not_copyable>>);

template <class Update>
concept Updates = UpdatesOn<composed<optimizer<>, Update>, backend_archetype>;

static_assert(Updates<with_update>);
static_assert(!Updates<writes_gradient>);
static_assert(!Updates<other_state_count>);
static_assert(!Updates<mutable_update>);
static_assert(!Updates<returning_update>);

}  // namespace

}  // namespace optimizer_concept_test
