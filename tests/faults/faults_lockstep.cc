// faults_lockstep CASE: a rank of three, of which rank 1 does something else; mpirun starts them, or this program
// itself: faults_lockstep --launch CASE. The cases are those of faults_mpi.cc; faults.py runs both.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/world.h"

namespace {

using lockstep::comm::Buffer;
using lockstep::comm::DataType;
using lockstep::comm::ProcessGroup;
using lockstep::comm::Reduction;

constexpr std::chrono::milliseconds kDeadline{1500};
float values[100'000];

Buffer f32(int64_t count) {
  return {.data = values, .count = count};
}

void sum(ProcessGroup& group, int64_t count = 4) {
  group.all_reduce(f32(count), Reduction::sum);
}

// Blocking calls of two groups, rank 1 in the other order.
void swapped(ProcessGroup& world) {
  const std::vector everyone{0, 1, 2};
  const auto a = world.split(everyone, "a"), b = world.split(everyone, "b");
  sum(world.rank() == 1 ? *b : *a);
  sum(world.rank() == 1 ? *a : *b);
}

using Calls = std::function<void(ProcessGroup&)>;
struct Case {
  Calls of_rank_1, of_others;
};

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all{
      {"killed", {[](auto&) { raise(SIGKILL); }, [](auto& g) { sum(g); }}},
      {"stopped", {[](auto&) { raise(SIGSTOP); }, [](auto& g) { sum(g); }}},
      {"returns early", {[](auto&) {}, [](auto& g) { sum(g); }}},
      {"skips a call",
       {[](auto& g) { g.broadcast(f32(4), 0); },
        [](auto& g) {
          sum(g);
          g.broadcast(f32(4), 0);
        }}},
      {"other count", {[](auto& g) { sum(g, 6); }, [](auto& g) { sum(g, 4); }}},
      {"other count, large", {[](auto& g) { sum(g, 60'000); }, [](auto& g) { sum(g, 90'000); }}},
      {"other type",
       {[](auto& g) { g.all_reduce({.data = values, .count = 4, .type = DataType::i32}, Reduction::sum); },
        [](auto& g) { sum(g); }}},
      {"other root", {[](auto& g) { g.broadcast(f32(4), 1); }, [](auto& g) { g.broadcast(f32(4), 0); }}},
      {"other reduction", {[](auto& g) { g.all_reduce(f32(4), Reduction::max); }, [](auto& g) { sum(g); }}},
      {"other operation", {[](auto& g) { g.broadcast(f32(4), 1); }, [](auto& g) { sum(g); }}},
      {"groups swapped", {swapped, swapped}},
  };
  return all;
}

void run(const std::string& name) {
  const auto world = lockstep::launch::world_from_environment({.deadline = kDeadline});
  std::fprintf(stderr, "process %d\n", getpid());
  for (float& value : values) value = static_cast<float>(world->rank() + 1);
  world->barrier();
  const Case& faulty = cases().at(name);
  (world->rank() == 1 ? faulty.of_rank_1 : faulty.of_others)(*world);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "--launch") {
      return lockstep::launch::launch(
          {.ranks = 3, .command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[2]}});
    }
    if (argc != 2 || !cases().contains(argv[1])) return 2;
    run(argv[1]);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.type_name(), error.what());
    return error.exit_code();
  }
  return 0;
}
