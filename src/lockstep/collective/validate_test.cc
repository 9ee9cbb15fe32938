// That validate() and interpret() see what is wrong: every program here is a right one with one thing changed.
#include "lockstep/collective/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/collective/interpret.h"

namespace lockstep::collective {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> messages(const Program& program) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(program)) result.push_back(problem.message());
  return result;
}

Program ring(int ranks) {
  return make_program(Operation::all_reduce, "ring", {.ranks = ranks});
}

std::string what_interpret_says(const Program& program) {
  const std::vector<std::vector<double>> inputs(static_cast<size_t>(program.ranks), {1, 2, 3, 4, 5});
  try {
    interpret(program, piece_sizes(program, 5), inputs);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

// Calls change(program, step) for every step of the program, one at a time.
template <typename Change>
void expect_every_change_to_be_a_problem(const Program& program, Change change) {
  for (size_t rank = 0; rank < program.steps_by_rank.size(); ++rank) {
    for (size_t i = 0; i < program.steps_by_rank[rank].size(); ++i) {
      Program changed = program;
      std::vector<Step>& steps = changed.steps_by_rank[rank];
      if (!change(steps, steps.begin() + static_cast<std::ptrdiff_t>(i))) continue;
      EXPECT_THAT(messages(changed), Not(IsEmpty())) << program.algorithm << " " << name(program.operation) << " rank "
                                                     << rank << ": " << to_string(program.steps_by_rank[rank][i]);
    }
  }
}

TEST(Validate, SeesAnyStepThatIsMissingOrThereTwice) {
  for (const Algorithm& algorithm : algorithms()) {
    const Program program = algorithm.make({.ranks = 5, .root = 1, .host_of_rank = {0, 0, 1, 1, 1}});
    expect_every_change_to_be_a_problem(program, [](std::vector<Step>& steps, auto step) {
      steps.erase(step);
      return true;
    });
    expect_every_change_to_be_a_problem(program, [](std::vector<Step>& steps, auto step) {
      if (step->kind == Step::Kind::copy) return false;
      steps.insert(step, *step);
      return true;
    });
  }
}

TEST(Validate, SeesAnyOtherPeerPieceOrRound) {
  for (const Algorithm& algorithm : algorithms()) {
    const Program program = algorithm.make({.ranks = 5, .root = 1, .host_of_rank = {0, 0, 1, 1, 1}});
    expect_every_change_to_be_a_problem(program, [](std::vector<Step>&, auto step) {
      step->peer = (step->peer + 1) % 5;
      return step->kind != Step::Kind::copy;
    });
    expect_every_change_to_be_a_problem(program, [](std::vector<Step>&, auto step) {
      ++(step->kind == Step::Kind::send ? step->source : step->target).piece;
      return true;
    });
    expect_every_change_to_be_a_problem(program, [](std::vector<Step>&, auto step) {
      --step->round;
      return step->kind != Step::Kind::copy;  // may well be made earlier
    });
  }
}

TEST(Validate, SaysWhatIsWrong) {
  Program program = ring(3);
  program.steps_by_rank[0][0].source.buffer = Buffer::output;
  EXPECT_THAT(messages(program), Contains("rank 0 = round 0: send output 2 to 1: reads too early"));

  program = ring(3);
  program.steps_by_rank[0][1].target.buffer = Buffer::input;
  EXPECT_THAT(messages(program), Contains(HasSubstr("into input 1: writes input")));

  program = make_program(Operation::all_gather, "ring", {.ranks = 3});
  std::erase_if(program.steps_by_rank[0], [](const Step& step) { return step.kind == Step::Kind::copy; });
  EXPECT_THAT(messages(program), Contains("rank 0 = output 0: is never written"));

  program = ring(3);
  program.rounding = Rounding::once;
  EXPECT_THAT(messages(program), Contains(HasSubstr("is a sum of sums where sums are to be rounded once")));

  program = ring(3);
  program.rounding = Rounding::none;
  EXPECT_THAT(messages(program), Contains("rounding = none: does not go with all_reduce"));
}

TEST(Validate, SeesInputThatIsReadAfterOutputTookItsPlace) {
  Program program = make_program(Operation::all_reduce, "recursive_whole", {.ranks = 4});
  ASSERT_EQ(program.steps_by_rank[0][2].kind, Step::Kind::send);
  program.steps_by_rank[0][2].source.buffer = Buffer::input;
  EXPECT_THAT(messages(program),
              Contains("rank 0 = round 1: send input 0 to 2: reads input after output took its place"));
}

TEST(Interpret, SeesRanksThatWaitForOneAnother) {
  Program program = ring(3);
  std::vector<Step>& steps = program.steps_by_rank[1];
  std::erase_if(steps,
                [&](const Step& step) { return step.kind == Step::Kind::send && step.round == program.rounds - 1; });
  EXPECT_THAT(what_interpret_says(program), HasSubstr("rank 2: waits for ever in receive"));
}

TEST(Interpret, SeesMessagesThatNobodyTakes) {
  Program program = ring(2);
  Step extra = program.steps_by_rank[0][0];
  extra.round = program.rounds;
  program.steps_by_rank[0].push_back(extra);
  EXPECT_THAT(what_interpret_says(program), HasSubstr("rank 0: waits for ever in send input"));
}

TEST(Interpret, SeesReadingOfWhatWasNotWritten) {
  Program program = ring(3);
  program.steps_by_rank[0][0].source.buffer = Buffer::output;
  EXPECT_EQ(what_interpret_says(program), "rank 0: send output 2 to 1 reads what was not written");
}

TEST(Interpret, SeesMessagesOfAnotherLength) {
  Program program = ring(2);  // pieces of 3 and 2 elements
  for (Step& step : program.steps_by_rank[0]) {
    if (step.kind == Step::Kind::send) step.source.piece = 1 - step.source.piece;
  }
  EXPECT_NE(what_interpret_says(program), "");
}

}  // namespace
}  // namespace lockstep::collective
