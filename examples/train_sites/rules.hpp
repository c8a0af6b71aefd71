// Every rule of every method in one set of optimizers, of which a run uses two: so that the model
// is one type, compiled once.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "lordo/lordo.hpp"
#include "mfsdp/mfsdp.hpp"

namespace train_sites {

struct rules {
  lordo::averaged<mfsdp::adamw> ddp_adam;
  lordo::ldadam<> ldadam;
  lordo::galore<> galore;
  lordo::local_steps<mfsdp::adamw> local_adam;
  lordo::local_steps<mfsdp::adamw, lordo::outer_nesterov> diloco;
  lordo::low_rank_adam<lordo::svd> low_rank_svd;
  lordo::low_rank_adam<lordo::power_step> low_rank;
  lordo::low_rank_adam<lordo::random_projection> low_rank_random;
  lordo::low_rank_muon<lordo::power_step> low_rank_muon;
  lordo::averaged<mfsdp::muon> ddp_muon;
  lordo::local_steps<mfsdp::muon> local_muon;
  lordo::local_steps<mfsdp::muon, lordo::outer_nesterov> muloco;
  lordo::local_steps<mfsdp::muon, lordo::outer_average, lordo::exchange_low_rank> factored_muon;
  // For what is no matrix.
  lordo::averaged<mfsdp::adamw> ddp_rest;
  lordo::local_steps<mfsdp::adamw> local_rest;
  lordo::local_steps<mfsdp::adamw, lordo::outer_nesterov> diloco_rest;

  [[nodiscard]] auto members() const {
    return std::tuple{ddp_adam,      ldadam,       galore,     local_adam,
                      diloco,        low_rank_svd, low_rank,   low_rank_random,
                      low_rank_muon, ddp_muon,     local_muon, muloco,
                      factored_muon, ddp_rest,     local_rest, diloco_rest};
  }
  enum class member : std::size_t {
    ddp_adam,
    ldadam,
    galore,
    local_adam,
    diloco,
    low_rank_svd,
    low_rank,
    low_rank_random,
    low_rank_muon,
    ddp_muon,
    local_muon,
    muloco,
    factored_muon,
    ddp_rest,
    local_rest,
    diloco_rest
  };
  member for_matrices = member::low_rank;
  member for_rest = member::local_rest;

  [[nodiscard]] std::size_t route(const mfsdp::tensor_spec& tensor) const {
    return static_cast<std::size_t>(tensor.role == mfsdp::tensor_role::matrix ? for_matrices
                                                                              : for_rest);
  }
  [[nodiscard]] auto groups() const {
    std::array<mfsdp::optimizer_group, std::tuple_size_v<decltype(members())>> all;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {std::to_string(i), true};
    return all;
  }
};

static_assert(mfsdp::DescribesGroups<rules>);

}  // namespace train_sites
