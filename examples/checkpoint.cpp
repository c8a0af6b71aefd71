// Trains, saves, and goes on with another number of ranks from where it was.
#include <cmath>
#include <filesystem>
#include <mfsdp/checkpoint.hpp>
#include <mfsdp/mfsdp.hpp>
#include <vector>

namespace {

// The gradient of a batch of 12 samples, of which each rank has its share: the sum does not depend
// on how many ranks there are, but for rounding.
template <class Model>
double train_step(Model& model) {
  double loss = 0;
  for (const std::size_t unit : model.backward_order()) {
    const auto weights = model.acquire(unit, mfsdp::pass::backward);
    const auto gradients = model.gradients(unit);
    gradients.zero();
    for (int sample = model.rank(); sample < 12; sample += model.ranks()) {
      for (std::size_t t = 0; t < gradients.pointers().size(); ++t) {
        const auto w = weights[t].flat();
        for (std::size_t i = 0; i < w.size(); ++i) {
          const float away = w[i] - std::cos(static_cast<float>(i + t) + 0.1f * sample);
          loss += 0.5 * away * away;
          gradients[t].flat()[i] += away / 12;
        }
      }
    }
    gradients.reduce();
  }
  model.step();
  return model.sum(loss) / 12;
}

// [begin resume]
// Goes on from the latest checkpoint, if there is one. Returns the losses of the steps that it
// takes.
template <class Model>
std::vector<double> train(Model& model, int until, const std::string& folder) {
  std::int64_t step = 0;
  if (mfsdp::latest_checkpoint(model, folder)) {
    step = mfsdp::load(model, folder).step;
  } else {
    model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t) {
      for (float& value : values) value = 0;
    });
  }
  std::vector<double> losses;
  mfsdp::background_saver saver(folder);
  for (; step < until; ++step) {
    losses.push_back(train_step(model));
    if ((step + 1) % 2 == 0) saver.save(model, {.keep_last = 2, .trainer = "my own text"});
    saver.poll();  // completes the checkpoint once all ranks have written their shares
  }
  saver.wait();
  return losses;
}
// [end resume]

// Adds to `losses`.
void train_on(int ranks, int until, const std::string& folder, std::vector<double>& losses) {
  mfsdp::model_spec spec;
  spec.unit("block").matrix("up", 64, 16).matrix("down", 16, 64).vector("norm", 16);
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{
        spec, comm, mfsdp::owner_placement{},
        mfsdp::mixed{mfsdp::muon{.learning_rate = 0.05}, mfsdp::adamw{.learning_rate = 0.05}}};
    const std::vector<double> own = train(model, until, folder);
    const std::int64_t saved = mfsdp::latest_checkpoint(model, folder).value();
    if (comm.rank() != 0) return;
    losses.insert(losses.end(), own.begin(), own.end());
    fmt::print("{} ranks, until step {}: loss {:.3f}, saved step {}\n", ranks, until, losses.back(),
               saved);
  });
}

}  // namespace

int main() {
  const std::filesystem::path temporary = std::filesystem::temp_directory_path();
  const std::string stopping = (temporary / "mfsdp_example_stopping").string();
  const std::string whole = (temporary / "mfsdp_example_whole").string();
  for (const std::string& folder : {stopping, whole}) std::filesystem::remove_all(folder);

  std::vector<double> losses;
  train_on(3, 4, stopping, losses);
  train_on(2, 6, stopping, losses);  // a machine is gone
  train_on(4, 8, stopping, losses);
  std::vector<double> expected;
  train_on(3, 8, whole, expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(losses[i] - expected[i]) > 1e-3) fmt::print("step {} differs\n", i + 1);
  }
  for (const std::string& folder : {stopping, whole}) std::filesystem::remove_all(folder);
}
