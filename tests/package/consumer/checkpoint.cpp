#include <mfsdp/checkpoint.hpp>

int main() {
  mfsdp::manifest empty;
  fmt::print("mfsdp {}: step {}\n", MFSDP_VERSION,
             mfsdp::parse_manifest(mfsdp::to_text(empty)).step);
}
