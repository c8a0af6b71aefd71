// model FOLDER: writes a bfloat16 model of two ranks, whose element i of each tensor is i / 4 - 2,
// as FOLDER/model.safetensors, as FOLDER/several/ with an index, and as a checkpoint in FOLDER/run.
#include <cstddef>
#include <exception>
#include <span>
#include <string>

#include "mfsdp/checkpoint.hpp"
#include "mfsdp/mfsdp.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  mfsdp::model_spec spec;
  spec.unit("block").matrix("up", 6, 4).vector("norm", 5).vector("fixed", 3, {.frozen = true});
  spec.unit("head").elementwise("table", {3, 2, 2}).tied("norm", "block.norm");
  using half = mfsdp::bfloat16;
  const mfsdp::precision<half, half, float, half, mfsdp::float16> types{};
  try {
    mfsdp::thread_world{2}.run([&](auto world) {
      mfsdp::sharded_model model{spec, world, mfsdp::owner_placement{}, mfsdp::adamw{}, types};
      model.initialize(
          [](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t first) {
            for (std::size_t i = 0; i < values.size(); ++i) {
              values[i] = (static_cast<float>(first) + static_cast<float>(i)) / 4 - 2;
            }
          });
      mfsdp::export_model(model, folder + "/model.safetensors");
      mfsdp::export_model(model, folder + "/several", {.file_bytes = 40});
      mfsdp::save(model, folder + "/run");
    });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
