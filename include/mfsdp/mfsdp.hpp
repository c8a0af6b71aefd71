// mfsdp: everything that a host compiler needs. Names the defaults: cpu_backend, one shard axis,
// float throughout.
#pragma once

#include "mfsdp/backend/cpu.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/collective/counting.hpp"
#include "mfsdp/collective/elastic.hpp"
#include "mfsdp/collective/mesh.hpp"
#include "mfsdp/collective/self.hpp"
#include "mfsdp/collective/threads.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/mixed.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/parameter_groups.hpp"
#include "mfsdp/optimizer/sgd.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/placement/replicated.hpp"
#include "mfsdp/placement/rows.hpp"
#include "mfsdp/plan_report.hpp"
#include "mfsdp/plan_text.hpp"
#include "mfsdp/planner.hpp"
#include "mfsdp/precision.hpp"
#include "mfsdp/schedule.hpp"
#include "mfsdp/sharded_model.hpp"
#include "mfsdp/version.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

template <class C>
struct axes_of {
  using type = C;
};
template <Collective C>
struct axes_of<C> {
  using type = mesh<C>;
};

}  // namespace detail

template <class C, class P, class O>
sharded_model(const model_spec&, C, P, O, model_options = {})
    -> sharded_model<typename detail::axes_of<C>::type, P, O, cpu_backend>;

template <class C, class P, class O, class B>
sharded_model(const model_spec&, C, P, O, model_options, B)
    -> sharded_model<typename detail::axes_of<C>::type, P, O, B>;

template <class C, class P, class O, class... T>
sharded_model(const model_spec&, C, P, O, precision<T...>, model_options = {})
    -> sharded_model<typename detail::axes_of<C>::type, P, O, cpu_backend, precision<T...>>;

template <class C, class P, class O, class B, class... T>
sharded_model(const model_spec&, C, P, O, precision<T...>, model_options, B)
    -> sharded_model<typename detail::axes_of<C>::type, P, O, B, precision<T...>>;

}  // namespace mfsdp::inline MFSDP_ABI
