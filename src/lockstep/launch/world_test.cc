// What launchers leave in the environment, and what each of them gets.
#include "lockstep/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/comm/nccl/nccl_world.h"

namespace lockstep::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

// Sets the variables for one test, and none of the others that are looked at.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name :
         {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_WORLD_FD", "RANK", "WORLD_SIZE", "LOCAL_RANK",
          "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE",
          "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
};

template <class Expected>
std::string message_of(const Variables& variables, const WorldOptions& options = {}) {
  const Environment environment(variables);
  try {
    world_from_environment(options);
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return text("an error of another type: ", error.what());
  }
  return "no error";
}

TEST(World, WithoutALauncherIsOneRank) {
  const Environment environment({});
  const auto world = world_from_environment({.deadline = std::chrono::seconds(5)});
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->default_deadline(), std::chrono::seconds(5));
  EXPECT_EQ(place_from_environment().launcher, "none");
}

TEST(World, OfOneForeignRankIsFine) {
  const Environment environment({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(world_from_environment()->size(), 1);
  EXPECT_EQ(place_from_environment().launcher, "mpirun");
}

TEST(World, OfABatchScriptIsOneRank) {  // which srun did not start
  const Environment environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(world_from_environment()->size(), 1);
}

TEST(World, ThatMpiCannotFindIsRefusedByName) {
  const std::map<std::string, Variables> cases{
      {"mpirun", {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}},
      {"srun", {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}}},
      {"torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}}};
  for (const auto& [launcher, variables] : cases) {
    EXPECT_THAT(message_of<Unsupported>(variables),
                AllOf(HasSubstr(launcher + " started 4 processes"), HasSubstr("lockstep launch --ranks 4")));
    EXPECT_THAT(message_of<Unsupported>(variables, {.backend = "mpi"}), HasSubstr("mpi"));
    EXPECT_FALSE(place_from_environment().has_mpi);
  }
}

TEST(World, RanksOfOneHostMeetThere) {
  Variables variables{{"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_RANK", "1"},
                      {"MASTER_ADDR", "h"},
                      {"TORCHELASTIC_RUN_ID", "job"},
                      {"LOCAL_WORLD_SIZE", "2"}};
  {
    const Environment environment(variables);
    EXPECT_THAT(place_from_environment().meeting,
                AllOf(HasSubstr("MASTER_ADDR=h"), HasSubstr("TORCHELASTIC_RUN_ID=job")));
  }
  variables["LOCAL_WORLD_SIZE"] = "1";  // the other one is elsewhere
  const Environment environment(variables);
  EXPECT_EQ(place_from_environment().meeting, "");
}

TEST(World, OfMpirunIsMpi) {
  const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "1"}});
  EXPECT_TRUE(place_from_environment().has_mpi);
}

TEST(World, PlaceOfEachLauncher) {
  const Environment environment({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}});
  const Place place = place_from_environment();
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world_size, 8);
  EXPECT_EQ(place.local_rank, 1);
}

TEST(World, VariablesThatContradictOneAnother) {
  EXPECT_THAT(message_of<InvalidArgument>({{"LOCKSTEP_WORLD_FD", "5"}}), HasSubstr("LOCKSTEP_RANK"));
  EXPECT_THAT(message_of<InvalidArgument>({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK = one"));
  EXPECT_THAT(message_of<InvalidArgument>({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK = 2 with WORLD_SIZE = 2"));
  EXPECT_THAT(
      message_of<InvalidArgument>({{"LOCKSTEP_WORLD_FD", "987"}, {"LOCKSTEP_RANK", "0"}, {"LOCKSTEP_WORLD_SIZE", "2"}}),
      HasSubstr("descriptor 987 is not the shared memory"));
}

TEST(Backends, ThatAreMissingSayWhatThereIs) {
  if (!comm::nccl_missing_because().empty()) {
    EXPECT_THAT(message_of<Unsupported>({}, {.backend = "nccl"}),
                AllOf(HasSubstr("backend nccl is not part of this build"), HasSubstr("in_process, shared_memory")));
  } else if (comm::num_gpus() == 0) {
    EXPECT_THAT(message_of<Unsupported>({}, {.backend = "nccl"}),
                AllOf(HasSubstr("local rank 0 has no GPU of its own"), HasSubstr("use backend in_process")));
  }
  EXPECT_THAT(message_of<InvalidArgument>({}, {.backend = "shared_memroy"}), HasSubstr("(nearest: shared_memory)"));
  EXPECT_THAT(message_of<Unsupported>({}, {.backend = "shared_memory"}), HasSubstr("lockstep launch --ranks N"));
}

}  // namespace
}  // namespace lockstep::launch
