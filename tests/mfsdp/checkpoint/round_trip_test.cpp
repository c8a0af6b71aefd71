// A checkpoint of any number of ranks loads at any other, bit for bit, and reads nothing twice.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <numeric>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"

namespace round_trip_test {

namespace {

using checkpoint_files::temporary_folder;

// Ranks of one shard group, and how many of these.
struct world_of {
  int ranks = 1;
  int replicas = 1;
};

// Calls body(model) on every rank; one type of model for all tests here.
template <class Body>
void on_owners(world_of world, Body&& body) {
  mfsdp::thread_world{world.ranks * world.replicas}.run([&](auto comm) {
    const mfsdp::mesh axes{comm.split(comm.rank() / world.ranks),
                           comm.split(comm.rank() % world.ranks)};
    mfsdp::sharded_model model{checkpoint_models::spec_of(checkpoint_models::plain_names), axes,
                               mfsdp::owner_placement{},
                               checkpoint_models::plain_rules([](auto rule) { return rule; })};
    body(model);
  });
}

// Of all files but the manifest.
std::int64_t bytes_in(const std::string& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") {
      bytes += static_cast<std::int64_t>(entry.file_size());
    }
  }
  return bytes;
}

void check_loads(const std::string& root, world_of world, int salt, std::int64_t elements) {
  std::atomic<std::int64_t> read = 0;
  std::atomic<std::int64_t> headers = 0;
  std::atomic<mfsdp::index_t> wrong = 0;
  on_owners(world, [&](auto& model) {
    const mfsdp::loaded at = mfsdp::load(model, root);
    read += at.bytes_read;
    headers += at.header_bytes_read;
    wrong += checkpoint_values::count_wrong(model, salt) + (at.step == 7 ? 0 : 1);
    wrong += at.changed_options.empty() && !at.joined ? 0 : 1;
  });
  CHECK(wrong == 0);
  CHECK(read == elements * 4 * world.replicas);
  // Every rank opens what it needs, at most every file once.
  const std::string folder = root + "/step-000000000007";
  const auto manifest =
      static_cast<std::int64_t>(std::filesystem::file_size(folder + "/manifest.json"));
  CHECK(headers <= world.ranks * world.replicas * (manifest + bytes_in(folder) - elements * 4));
}

}  // namespace

TEST_CASE("owners: every pair of world sizes") {
  const std::vector<int> worlds{1, 2, 3, 4, 7, 8};
  for (const int from : worlds) {
    CAPTURE(from);
    const temporary_folder root;
    std::atomic<std::int64_t> elements = 0;
    on_owners({from}, [&](auto& model) {
      checkpoint_values::set_values(model, from);
      model.persistence().for_each_held([&](auto, auto values) { elements += std::ssize(values); });
      CHECK(mfsdp::save(model, root.path()) == root / "step-000000000007");
      CHECK(model.moved(mfsdp::phase::checkpoint).collectives > 0);
    });
    for (const int to : worlds) {
      CAPTURE(to);
      check_loads(root.path(), {to}, from, elements);
    }
  }
}

TEST_CASE("replicas share out the writing, and read what each of them needs") {
  const temporary_folder root;
  std::atomic<std::int64_t> elements = 0;
  on_owners({2, 3}, [&](auto& model) {
    checkpoint_values::set_values(model, 5);
    if (model.rank() < 2) {
      model.persistence().for_each_held([&](auto, auto values) { elements += std::ssize(values); });
    }
    mfsdp::save(model, root.path());
  });
  // Nothing is written twice, and no rank writes far more than a sixth.
  const std::string folder = root / "step-000000000007";
  std::vector<std::int64_t> by_rank(6, 0);
  std::int64_t headers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("-of-00006.safetensors")) continue;
    const mfsdp::safetensors_file file(entry.path().string());
    const std::int64_t bytes = file.layout().file_bytes - file.layout().header_bytes;
    by_rank[static_cast<std::size_t>(name[name.find('-') + 5] - '0')] += bytes;
    headers += file.layout().header_bytes;
  }
  const std::int64_t all = std::accumulate(by_rank.begin(), by_rank.end(), std::int64_t{0});
  CHECK(all == elements * 4);
  CHECK(headers > 0);
  for (const std::int64_t bytes : by_rank) {
    CHECK(bytes > all / 9);
    CHECK(bytes < all / 4);
  }
  check_loads(root.path(), {2, 3}, 5, elements);
  check_loads(root.path(), {1, 2}, 5, elements);
  check_loads(root.path(), {4, 1}, 5, elements);
}

TEST_CASE("the background saver writes the same files") {
  const temporary_folder front;
  const temporary_folder behind;
  const auto bytes_of = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  on_owners({3}, [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::save(model, front.path());
    mfsdp::background_saver saver(behind.path());
    CHECK(!saver.poll());
    CHECK(!saver.wait());
    saver.save(model);
    checkpoint_values::set_values(model, 2);  // what is saved is a copy
    CHECK(saver.wait() == behind / "step-000000000007");
    CHECK(!saver.wait());
  });
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(front / "step-000000000007")) {
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    CHECK(bytes_of(entry.path().string()) == bytes_of(behind / "step-000000000007/" + name));
    ++files;
  }
  CHECK(files == 7);
}

}  // namespace round_trip_test
