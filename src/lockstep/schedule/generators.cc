// The list of schedules.
#include <array>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

namespace {

std::vector<Problem> check_accumulation(const Shape& shape) {
  std::vector<Problem> problems;
  if (shape.ranks != 1) {
    problems.push_back({"ranks", text(shape.ranks), "accumulation is the schedule of one pipeline rank", "1"});
  }
  if (shape.microbatches < 1) problems.push_back({"microbatches", text(shape.microbatches), "must be at least 1", "1"});
  return problems;
}

constexpr std::array kGenerators = {
    Generator{"accumulation", accumulation, check_accumulation},
};

}  // namespace

std::span<const Generator> generators() {
  return kGenerators;
}

}  // namespace lockstep::schedule
