#include <mfsdp/spec.hpp>
#include <mfsdp/version.hpp>

int main() {
  mfsdp::model_spec spec;
  spec.unit("block").matrix("up", 64, 16).matrix("down", 16, 64);
  fmt::print("mfsdp {}: {} tensors\n", MFSDP_VERSION, spec.tensors().size());
}
