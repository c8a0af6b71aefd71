// expect: mfsdp: Optimizer lacks 'static constexpr std::string_view name'
#include <mfsdp/mfsdp.hpp>

#ifdef MFSDP_COMPILE_FAIL
inline constexpr double rest = 3e-4;  // a rate where its optimizer should be
#else
inline constexpr mfsdp::adamw rest{.learning_rate = 3e-4};
#endif

mfsdp::plan plan_of(const mfsdp::model_spec& spec) {
  return mfsdp::make_plan(
      spec, 2, mfsdp::owner_placement{},
      mfsdp::parameter_groups{mfsdp::for_names("*.up", mfsdp::muon{}), mfsdp::for_rest(rest)});
}
