// Two savers of one folder.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"

namespace lock_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;

mfsdp::model_spec matrix_and_vector() {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("m", 4, 3).vector("v", 5);
  return spec;
}

}  // namespace

TEST_CASE("while one saver writes another one is refused, and has removed nothing") {
  const temporary_folder root;
  mfsdp::sharded_model first{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                             mfsdp::sgd{}};
  mfsdp::sharded_model second{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                              mfsdp::sgd{}};
  checkpoint_values::set_values(first, 1, 3);
  checkpoint_values::set_values(second, 2, 5);
  mfsdp::background_saver saver(root.path());
  saver.save(first);
  const std::string refusal = refusal_of([&] { return mfsdp::save(second, root.path()); });
  CHECK(refusal.find("is saving to '" + root.path() + "' now: end it, or name another folder") !=
        std::string::npos);
  CHECK(saver.wait() == root / "step-000000000003");
  CHECK(mfsdp::save(second, root.path()) == root / "step-000000000005");
  CHECK(mfsdp::load(first, root.path(), {.step = 3}).step == 3);
  CHECK(checkpoint_values::count_wrong(first, 1, 3) == 0);
}

TEST_CASE("what is given up lets go of the folder") {
  const temporary_folder root;
  mfsdp::sharded_model model{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                             mfsdp::sgd{}};
  checkpoint_values::set_values(model, 1, 3);
  {
    mfsdp::background_saver saver(root.path());
    saver.save(model);
  }
  CHECK(mfsdp::save(model, root.path()) == root / "step-000000000003");
}

TEST_CASE("a process that was forked while a saver wrote does not keep the folder") {
  const temporary_folder root;
  mfsdp::sharded_model model{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                             mfsdp::sgd{}};
  checkpoint_values::set_values(model, 1, 3);
  mfsdp::background_saver saver(root.path());
  saver.save(model);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    while (true) ::pause();
  }
  CHECK(saver.wait() == root / "step-000000000003");
  checkpoint_values::set_values(model, 1, 4);
  const std::string refusal = refusal_of([&] { return mfsdp::save(model, root.path()); });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(refusal == "");
}

TEST_CASE("while a saver writes nobody puts its checkpoints aside") {
  const temporary_folder root;
  mfsdp::sharded_model model{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                             mfsdp::sgd{}};
  for (const int step : {1, 2}) {
    checkpoint_values::set_values(model, 1, step);
    (void)mfsdp::save(model, root.path());
  }
  checkpoint_values::set_values(model, 1, 3);
  mfsdp::background_saver saver(root.path());
  saver.save(model);
  mfsdp::sharded_model other{matrix_and_vector(), mfsdp::self{}, mfsdp::owner_placement{},
                             mfsdp::sgd{}};
  const std::string refusal =
      refusal_of([&] { return mfsdp::load(other, root.path(), {.step = 1}); });
  CHECK(refusal.find("is saving to '" + root.path() + "' now") != std::string::npos);
  CHECK(saver.wait() == root / "step-000000000003");
}

}  // namespace lock_test
