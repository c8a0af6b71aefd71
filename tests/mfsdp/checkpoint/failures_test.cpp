// What goes wrong with checkpoints: every rank gets the same error, nothing hangs, and the
// checkpoint before stays.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"
#include "support/toy_training.hpp"

namespace failures_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using namespace std::chrono_literals;

// One long tensor, that one rank alone holds, and short ones.
mfsdp::model_spec uneven_spec() {
  mfsdp::model_spec spec;
  spec.unit("unit").matrix("long", 100, 60).matrix("short", 6, 5).vector("v", 7);
  return spec;
}

// One type of model for all tests here.
template <class Body>
void on_toys(const mfsdp::model_spec& spec, int ranks, Body&& body) {
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, toy::optimizers(),
                               mfsdp::model_options{.timeout = 10s}};
    body(model);
  });
}

// What all ranks say, which must be the same.
class said_by_all {
 public:
  void add(const std::string& text) {
    const std::scoped_lock guard(mutex_);
    ++count_;
    texts_.insert(text);
  }
  [[nodiscard]] std::string by(int ranks) const {
    CHECK(count_ == ranks);
    CHECK(texts_.size() == 1);
    return *texts_.begin();
  }

 private:
  std::mutex mutex_;
  int count_ = 0;
  std::set<std::string> texts_;
};

[[nodiscard]] bool says(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("not in: " << text);
  return found;
}

// A disk that takes no more than so many bytes in a file.
class full_disk {
 public:
  explicit full_disk(rlim_t bytes) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~full_disk() { setrlimit(RLIMIT_FSIZE, &before_); }
  full_disk(const full_disk&) = delete;
  full_disk& operator=(const full_disk&) = delete;

 private:
  rlimit before_{};
};

void save_made_up(const std::string& root, const mfsdp::model_spec& spec, int salt) {
  on_toys(spec, 2, [&](auto& model) {
    checkpoint_values::set_values(model, salt);
    mfsdp::save(model, root);
  });
}

void check_still_loads(const std::string& root, const mfsdp::model_spec& spec, int salt) {
  std::atomic<mfsdp::index_t> wrong = 0;
  on_toys(spec, 3, [&](auto& model) {
    mfsdp::load(model, root);
    wrong += checkpoint_values::count_wrong(model, salt);
  });
  CHECK(wrong == 0);
  CHECK(mfsdp::detail::folders_in(root).size() == 1);  // nothing half written is left
}

}  // namespace

TEST_CASE("a disk that is full for one rank is the same error on all, and costs nothing") {
  const temporary_folder root;
  save_made_up(root.path(), uneven_spec(), 1);
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    said_by_all said;
    on_toys(uneven_spec(), 3, [&](auto& model) {
      checkpoint_values::set_values(model, 2);
      mfsdp::background_saver saver(root.path());
      (void)model.sum(0);
      std::optional<full_disk> full;
      if (model.rank() == 0) full.emplace(8000);
      (void)model.sum(0);
      said.add(refusal_of([&] {
        if (!behind) return mfsdp::save(model, root.path());
        saver.save(model);
        return saver.wait().value();
      }));
      (void)model.sum(0);
      CHECK(!saver.wait());  // it has been told once
      CHECK(checkpoint_values::count_wrong(model, 2) == 0);
    });
    const std::string text = said.by(3);
    CHECK(says(text, "save step 7 to"));
    CHECK(says(text, "-of-00003.safetensors': File too large; raise the limit"));
    CHECK(says(text, ": rank "));
    CHECK(text.find("rank 0, 1, 2") == std::string::npos);
    check_still_loads(root.path(), uneven_spec(), 1);
  }
}

TEST_CASE("a rank that throws while the others save") {
  const temporary_folder root;
  save_made_up(root.path(), toy::odd_spec(), 1);
  std::atomic<int> told = 0;
  CHECK_THROWS_WITH_AS(on_toys(toy::odd_spec(), 3,
                               [&](auto& model) {
                                 checkpoint_values::set_values(model, 2);
                                 if (model.rank() == 1) throw std::runtime_error("out of data");
                                 try {
                                   mfsdp::save(model, root.path());
                                 } catch (const mfsdp::rank_failure& failure) {
                                   if (says(failure.what(), "out of data")) ++told;
                                   throw;
                                 }
                               }),
                       "out of data", std::runtime_error);
  CHECK(told == 2);
  std::atomic<mfsdp::index_t> wrong = 0;
  on_toys(toy::odd_spec(), 4, [&](auto& model) {
    CHECK(mfsdp::load(model, root.path()).step == 7);
    wrong += checkpoint_values::count_wrong(model, 1);
    mfsdp::save(model, root.path());  // what that one has left is out of the way
  });
  CHECK(wrong == 0);
  CHECK(mfsdp::detail::folders_in(root.path()).size() == 1);
}

TEST_CASE("a saver that is let go of completes nothing and leaves no thread") {
  const temporary_folder root;
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::background_saver saver(root.path());
    saver.save(model);
  });
  CHECK(!mfsdp::latest_checkpoint(root.path()));
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(says(text, "has no checkpoint; initialize the model instead"));
  });
}

TEST_CASE("bytes that are not those that were saved: the tensor and the file are named") {
  const temporary_folder root;
  save_made_up(root.path(), toy::odd_spec(), 1);
  const std::string folder = root / "step-000000000007/";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string path = entry.path().string();
    CAPTURE(path);
    const mfsdp::safetensors_layout layout = mfsdp::safetensors_file(path).layout();
    const mfsdp::safetensors_entry& last = layout.entries.back();
    const auto offset = last.first_byte + last.bytes / 2;
    const auto flip = [&] {
      std::fstream io(path, std::ios::binary | std::ios::in | std::ios::out);
      io.seekg(offset);
      const char was = static_cast<char>(io.get());
      io.seekp(offset);
      io.put(static_cast<char>(was ^ 4));
    };
    flip();
    said_by_all said;
    on_toys(toy::odd_spec(), 3, [&](auto& model) {
      model.initialize(toy::initialize);
      said.add(refusal_of([&] { return mfsdp::load(model, root.path()); }));
      CHECK_THROWS_AS((void)model.acquire(0, mfsdp::pass::forward), mfsdp::usage_error);
      CHECK_THROWS_AS(mfsdp::save(model, root.path()), mfsdp::usage_error);
    });
    const std::string text = said.by(3);
    CHECK(says(text, "by their checksums"));
    CHECK(says(text, path));
    CHECK(says(text, last.name.substr(0, last.name.find_first_of("[/"))));
    flip();
  }
  check_still_loads(root.path(), toy::odd_spec(), 1);

  for (const char* const file : {"manifest.json", "states-00001-of-00002.safetensors"}) {
    CAPTURE(file);
    const std::string path = folder + file;
    const auto bytes = std::filesystem::file_size(path);
    std::filesystem::copy(path, root / "kept");
    for (const auto left : {std::uintmax_t{0}, bytes / 2, bytes - 1}) {
      std::filesystem::resize_file(path, left);
      said_by_all said;
      on_toys(toy::odd_spec(), 3, [&](auto& model) {
        said.add(refusal_of([&] { return mfsdp::load(model, root.path()); }));
      });
      const std::string text = said.by(3);
      CHECK(says(text, path));
      CHECK(says(text, "damaged or incomplete"));
      CHECK(says(text, "take another checkpoint"));
    }
    std::filesystem::rename(root / "kept", path);
  }
  for (const char* const file : {"parameters-00000-of-00002.safetensors", "manifest.json"}) {
    std::filesystem::remove(folder + file);
    on_toys(toy::odd_spec(), 2, [&](auto& model) {
      const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
      CHECK(says(text, std::string(file) + "' is not there: the checkpoint is damaged or "
                                           "incomplete; take another checkpoint"));
    });
  }
}

TEST_CASE("a step boundary is asked for, and options are checked") {
  const temporary_folder root;
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    CHECK_THROWS_AS(mfsdp::save(model, root.path()), mfsdp::usage_error);  // no values
    model.initialize(toy::initialize);
    {
      const auto weights = model.acquire(1, mfsdp::pass::evaluate);
      CHECK_THROWS_AS(mfsdp::save(model, root.path()), mfsdp::usage_error);
      CHECK_THROWS_AS(mfsdp::export_model(model, root / "m"), mfsdp::usage_error);
    }
    toy::reduce_zeros(model);
    CHECK_THROWS_AS(mfsdp::save(model, root.path()), mfsdp::usage_error);
    CHECK_THROWS_AS(mfsdp::background_saver(root.path()).save(model), mfsdp::usage_error);
    model.discard_gradients();
    CHECK(says(refusal_of([&] { return mfsdp::save(model, root.path(), {.keep_last = -1}); }),
               "keep_last is -1"));
    mfsdp::save(model, root.path());
  });
}

TEST_CASE("a run that begins anew does not mix with the checkpoints of another") {
  const temporary_folder root;
  save_made_up(root.path(), toy::odd_spec(), 1);
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    model.initialize(toy::initialize);
    const std::string text = refusal_of([&] { return mfsdp::save(model, root.path()); });
    CHECK(says(text, "has a checkpoint of step 7, and this one would be of step 0"));
  });
  check_still_loads(root.path(), toy::odd_spec(), 1);
}

TEST_CASE("a crash between two renames loses nothing") {
  const temporary_folder root;
  save_made_up(root.path(), toy::odd_spec(), 1);
  std::filesystem::rename(root / "step-000000000007", root / ".step-000000000007.replaced");
  CHECK(mfsdp::latest_checkpoint(root.path()) == 7);
  check_still_loads(root.path(), toy::odd_spec(), 1);
  save_made_up(root.path(), toy::odd_spec(), 2);
  check_still_loads(root.path(), toy::odd_spec(), 2);
  CHECK(std::filesystem::exists(root / "step-000000000007"));
}

}  // namespace failures_test
