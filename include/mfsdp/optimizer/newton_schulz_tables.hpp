// Coefficient tables for newton_schulz besides Keller Jordan's. The first `steps` rows are used, in
// order; if a table is shorter its last row repeats.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "mfsdp/optimizer/newton_schulz.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A polynomial that takes singular values up to `factor` as the table takes them up to one, in each
// of the first `rows` rows: a / s, b / s^3, c / s^5.
template <std::size_t N>
[[nodiscard]] constexpr std::array<newton_schulz_row, N> with_safety(
    std::array<newton_schulz_row, N> table, double factor, std::size_t rows = N) {
  const double cube = factor * factor * factor;
  for (std::size_t i = 0; i < std::min(rows, N); ++i) {
    table[i].a /= factor;
    table[i].b /= cube;
    table[i].c /= cube * factor * factor;
  }
  return table;
}

// YouJiacheng's, for five steps: steeper at zero than Keller Jordan's, and closer to one.
// Source: github.com/KellerJordan/modded-nanogpt; "quintic" of NVIDIA's Emerging-Optimizers.
inline constexpr std::array<newton_schulz_row, 5> you_coefficients{{{4.0848, -6.8946, 2.9270},
                                                                    {3.9505, -6.3029, 2.6377},
                                                                    {3.7418, -5.5913, 2.3037},
                                                                    {2.8769, -3.1427, 1.2046},
                                                                    {2.8366, -3.0525, 1.2012}}};

// Polar Express as published: the best polynomial at each step for singular values in [1e-3, 1];
// the last row converges. Without safety, so meant for exact arithmetic or with_safety.
// Source: Amsel et al., arXiv 2505.16932.
inline constexpr std::array<newton_schulz_row, 8> polar_express_coefficients{
    {{8.28721201814563, -23.595886519098837, 17.300387312530933},
     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
     {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
     {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
     {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
     {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
     {1.875, -1.25, 0.375}}};

// Polar Express as training programs use it: five rows with a safety of 1.02 in them, on an input
// that is divided by 1.02 of its norm as well (newton_schulz_options::safety).
// Source: github.com/microsoft/dion, nanochat and modded-nanogpt.
inline constexpr std::array<newton_schulz_row, 5> polar_express_safe_coefficients{
    {{8.156554524902461, -22.48329292557795, 15.878769915207462},
     {4.042929935166739, -2.808917465908714, 0.5000178451051316},
     {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
     {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
     {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}};

// Polar Express with a safety of 1.05 on its five first rows, for products in half precision.
// Source: github.com/Dao-AILab/gram-newton-schulz.
inline constexpr std::array<newton_schulz_row, 8> gram_coefficients =
    with_safety(polar_express_coefficients, 1.05, 5);

// Chebyshev-optimised, for five steps.
// Source: CANS, arXiv 2506.10935, by the table of NVIDIA's Emerging-Optimizers.
inline constexpr std::array<newton_schulz_row, 5> cans_coefficients{{{8.4703, -25.1081, 18.6293},
                                                                     {4.1828, -3.1087, 0.5806},
                                                                     {3.9619, -2.9541, 0.5630},
                                                                     {3.2866, -2.4647, 0.5074},
                                                                     {2.2737, -1.6447, 0.4162}}};

}  // namespace mfsdp::inline MFSDP_ABI
