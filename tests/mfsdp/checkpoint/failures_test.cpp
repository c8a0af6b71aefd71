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
      checkpoint_values::set_values(model, 2, 8);
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
      CHECK(checkpoint_values::count_wrong(model, 2, 8) == 0);
    });
    const std::string text = said.by(3);
    CHECK(says(text, "save step 8 to"));
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
                                 checkpoint_values::set_values(model, 2, 8);
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
    checkpoint_values::set_values(model, 1, 9);
    mfsdp::save(model, root.path());  // what that one has left is out of the way
  });
  CHECK(wrong == 0);
  CHECK(mfsdp::detail::folders_in(root.path()).size() == 2);
}

TEST_CASE("a saver that is let go of completes nothing and leaves no thread") {
  const temporary_folder root;
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::background_saver saver(root.path());
    saver.save(model);
  });
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    CHECK(!mfsdp::latest_checkpoint(model, root.path()));
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(says(text, "name the right folder, or initialize if this run is new"));
    // Written again, beside what was left half way.
    checkpoint_values::set_values(model, 1);
    mfsdp::save(model, root.path());
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
      CHECK(says(text, "there is no earlier one: put a copy in its place, or begin anew"));
      CHECK(says(text, "damaged or incomplete"));
    }
    std::filesystem::rename(root / "kept", path);
  }
  const auto refusal = [&] {
    said_by_all said;
    on_toys(toy::odd_spec(), 2, [&](auto& model) {
      said.add(refusal_of([&] { return mfsdp::load(model, root.path()); }));
    });
    return said.by(2);
  };
  std::filesystem::remove(folder + "parameters-00000-of-00002.safetensors");
  CHECK(says(refusal(),
             "parameters-00000-of-00002.safetensors' is not there: the checkpoint is damaged or "
             "incomplete; take another checkpoint"));
  std::filesystem::remove(folder + "manifest.json");  // it is none any more
  CHECK(says(refusal(), "has no checkpoint"));
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
    CHECK(says(text, "has checkpoints until step 7, and this one would be of step 0"));
  });
  check_still_loads(root.path(), toy::odd_spec(), 1);
}

TEST_CASE("none is replaced; the latest is named; a failed beginning leaves nothing") {
  const temporary_folder root;
  for (const int step : {7, 9}) {
    on_toys(toy::odd_spec(), 2, [&](auto& model) {
      checkpoint_values::set_values(model, 1, step);
      mfsdp::save(model, root.path());
    });
  }
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    const auto save_at = [&](std::int64_t step, int keep_last) {
      checkpoint_values::set_values(model, 2, step);
      return refusal_of([&] { return mfsdp::save(model, root.path(), {.keep_last = keep_last}); });
    };
    CHECK(says(save_at(9, 2), "there is one already, '" + root / "step-000000000009'"));
    CHECK(says(save_at(5, 2), "has checkpoints until step 9, and this one would be of step 5"));
    CHECK(says(save_at(10, model.rank() == 1 ? -1 : 2), "rank 1: save_options.keep_last is -1"));
  });
  CHECK(mfsdp::detail::folders_in(root.path()).size() == 2);
}

TEST_CASE("a folder without a manifest is no checkpoint, and damage says where to go on") {
  const temporary_folder root;
  for (const int step : {7, 8, 9}) {
    on_toys(toy::odd_spec(), 2, [&](auto& model) {
      checkpoint_values::set_values(model, step, step);
      mfsdp::save(model, root.path(), {.keep_last = 3});
    });
  }
  std::filesystem::remove(root / "step-000000000009/manifest.json");
  const std::string damaged = root / "step-000000000008";
  std::filesystem::resize_file(damaged + "/states-00000-of-00002.safetensors", 100);
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    CHECK(mfsdp::latest_checkpoint(model, root.path()) == 8);
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    const std::string way = "; move '" + damaged +
                            "' away to go on from step 7, or name that one on purpose "
                            "(load_options.step)";
    CHECK(text.ends_with(way));
    CHECK(mfsdp::load(model, root.path(), {.step = 7}).step == 7);
    CHECK(checkpoint_values::count_wrong(model, 7) == 0);
    checkpoint_values::set_values(model, 9, 9);
    mfsdp::save(model, root.path());
    CHECK(mfsdp::load(model, root.path()).step == 9);
  });
  CHECK(std::filesystem::exists(root / ".step-000000000008.abandoned"));
  CHECK(std::filesystem::exists(root / ".step-000000000009.abandoned"));
}

TEST_CASE("ranks that see different checkpoints are told which") {
  const temporary_folder one;
  const temporary_folder other;
  save_made_up(one.path(), toy::odd_spec(), 1);
  said_by_all said;
  on_toys(toy::odd_spec(), 3, [&](auto& model) {
    const std::string root = model.rank() == 1 ? other.path() : one.path();
    said.add(refusal_of([&] { return mfsdp::latest_checkpoint(model, root).has_value(); }));
  });
  CHECK(says(said.by(3), "rank 0, 2: 7"));
  CHECK(says(said.by(3), "rank 1: none"));
}

TEST_CASE("an earlier checkpoint that cannot be removed does not stop the next ones") {
  const temporary_folder root;
  std::filesystem::permissions(root.path(), std::filesystem::perms(0777));
  const std::string locked = root / ".step-000000000001.removed";
  std::filesystem::create_directories(locked + "/inside/more");
  std::filesystem::permissions(locked + "/inside", std::filesystem::perms(0555));
  const auto save_step = [&](auto& model, int step) {
    checkpoint_values::set_values(model, 1, step);
    CHECK(mfsdp::save(model, root.path(), {.keep_last = 1}) ==
          fmt::format("{}/step-{:012}", root.path(), step));
  };
  on_toys(toy::odd_spec(), 2, [&](auto& model) {
    const checkpoint_files::without_privileges meanwhile;
    for (const int step : {1, 2, 3}) save_step(model, step);
  });
  CHECK(std::filesystem::exists(locked + "/inside/more"));
  CHECK(!std::filesystem::exists(root / ".step-000000000001.removed-2"));
  std::filesystem::permissions(locked + "/inside", std::filesystem::perms(0777));
  on_toys(toy::odd_spec(), 2, [&](auto& model) { save_step(model, 4); });
  CHECK(!std::filesystem::exists(locked));
  CHECK(mfsdp::detail::checkpoints_in(root.path()).size() == 1);
}

}  // namespace failures_test
