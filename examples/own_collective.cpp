// A collective of one's own: docs/concepts/collective.md. Prints what one step moves, in order.
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/mfsdp.hpp"

using mfsdp::index_t, mfsdp::piece;

// [begin recorded]
// Any collective, with a list of what is started through it. Copies share the list, as they share
// the communicator.
template <mfsdp::Collective C>
class recorded {
 public:
  using request = typename C::request;

  recorded(C inner, std::shared_ptr<std::vector<std::string>> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }

  template <class T>
    requires mfsdp::AllGather<C, T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    log_->push_back("all-gather " + std::string(label));
    return inner_.start_all_gather(shard, full, pieces, label);
  }

  template <class From, class To>
    requires mfsdp::ReduceScatter<C, From, To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, mfsdp::reduce_into into,
                               std::string_view label) {
    log_->push_back("reduce-scatter " + std::string(label));
    return inner_.start_reduce_scatter(full, shard, pieces, into, label);
  }

 private:
  C inner_;
  std::shared_ptr<std::vector<std::string>> log_;
};
// [end recorded]

int main() {
  mfsdp::model_spec spec;
  spec.unit("first").matrix("weight", 6, 4).vector("bias", 6);
  spec.unit("second").matrix("weight", 2, 6).vector("bias", 2);

  mfsdp::thread_world{3}.run([&](auto comm) {
    const auto log = std::make_shared<std::vector<std::string>>();
    mfsdp::sharded_model model{spec, recorded{comm, log}, mfsdp::owner_placement{},
                               mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}}};
    model.initialize([](const auto&, std::span<float> values, index_t first) {
      for (float& value : values) value = static_cast<float>(first++ % 5);
    });
    double norm = 0;
    for (int step = 0; step < 2; ++step) {
      log->clear();
      for (const std::size_t unit : model.forward_order()) {
        (void)model.acquire(unit, mfsdp::pass::forward);
      }
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        for (const char* name : {"weight", "bias"}) gradients.put(name, weights[name].flat());
        gradients.reduce();
      }
      norm = model.clip(1.0);
      model.step();
    }
    if (comm.rank() != 0) return;
    for (const std::string& operation : *log) std::printf("%s\n", operation.c_str());
    std::printf("gradient norm %.4f\n", norm);
  });
}
