// The one list of algorithms.
#include "lockstep/base/text.h"
#include "lockstep/collective/families.h"
#include "lockstep/collective/program.h"

namespace lockstep::collective {
namespace {

std::vector<Problem> any_shape(const Shape& shape) {
  std::vector<Problem> problems;
  if (shape.ranks < 1) problems.push_back({"ranks", std::to_string(shape.ranks), "must be at least 1", "1"});
  if (shape.root < 0 || shape.root >= shape.ranks) {
    problems.push_back({"root", std::to_string(shape.root), text("must be a rank, 0 to ", shape.ranks - 1), "0"});
  }
  return problems;
}

constexpr Algorithm kAlgorithms[] = {
    {"ring", Operation::broadcast, ring::broadcast, any_shape},
    {"ring", Operation::reduce, ring::reduce, any_shape},
    {"ring", Operation::all_reduce, ring::all_reduce, any_shape},
    {"ring", Operation::reduce_scatter, ring::reduce_scatter, any_shape},
    {"ring", Operation::all_gather, ring::all_gather, any_shape},
};

}  // namespace

std::span<const Algorithm> algorithms() {
  return kAlgorithms;
}

Program make_program(Operation operation, std::string_view algorithm, const Shape& shape) {
  std::string names;
  for (const Algorithm& each : algorithms()) {
    if (each.operation != operation) continue;
    if (each.name != algorithm) {
      names += (names.empty() ? "" : ", ") + std::string(each.name);
      continue;
    }
    const std::vector<Problem> problems = each.check(shape);
    if (!problems.empty()) throw InvalidArgument(problems.front().message());
    return each.make(shape);
  }
  throw InvalidArgument(
      Problem{"algorithm", std::string(algorithm), text(name(operation), " has ", names), ""}.message());
}

}  // namespace lockstep::collective
