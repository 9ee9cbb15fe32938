// The one list of algorithms.
#include "lockstep/base/text.h"
#include "lockstep/collective/families.h"
#include "lockstep/collective/program.h"

namespace lockstep::collective {
namespace {

std::vector<Problem> any_shape(const Shape& shape) {
  if (shape.ranks < 1) return {{"ranks", std::to_string(shape.ranks), "must be at least 1", "1"}};
  if (shape.root >= 0 && shape.root < shape.ranks) return {};
  return {{"root", std::to_string(shape.root), text("must be a rank, 0 to ", shape.ranks - 1), "0"}};
}

std::vector<Problem> any_hosts(const Shape& shape) {
  std::vector<Problem> problems = any_shape(shape);
  const size_t hosts = shape.host_of_rank.size();
  if (hosts != 0 && hosts != static_cast<size_t>(shape.ranks)) {
    problems.push_back(
        {"host_of_rank", text(hosts, " entries"), text("must have one for each of ", shape.ranks, " ranks"), ""});
  }
  return problems;
}

constexpr Algorithm kAlgorithms[] = {
    {"naive", Operation::broadcast, naive::broadcast, any_shape},
    {"binomial_tree", Operation::broadcast, binomial_tree::broadcast, any_shape},
    {"ring", Operation::broadcast, ring::broadcast, any_shape},
    {"hierarchical", Operation::broadcast, hierarchical::broadcast, any_hosts},
    {"naive", Operation::reduce, naive::reduce, any_shape},
    {"binomial_tree", Operation::reduce, binomial_tree::reduce, any_shape},
    {"ring", Operation::reduce, ring::reduce, any_shape},
    {"hierarchical", Operation::reduce, hierarchical::reduce, any_hosts},
    {"naive", Operation::all_reduce, naive::all_reduce, any_shape},
    {"direct", Operation::all_reduce, direct::all_reduce, any_shape},
    {"direct_whole", Operation::all_reduce, direct::all_reduce_whole, any_shape},
    {"binomial_tree", Operation::all_reduce, binomial_tree::all_reduce, any_shape},
    {"ring", Operation::all_reduce, ring::all_reduce, any_shape},
    {"recursive", Operation::all_reduce, recursive::all_reduce, any_shape},
    {"recursive_whole", Operation::all_reduce, recursive::all_reduce_whole, any_shape},
    {"hierarchical", Operation::all_reduce, hierarchical::all_reduce, any_hosts},
    {"naive", Operation::reduce_scatter, naive::reduce_scatter, any_shape},
    {"direct", Operation::reduce_scatter, direct::reduce_scatter, any_shape},
    {"binomial_tree", Operation::reduce_scatter, binomial_tree::reduce_scatter, any_shape},
    {"ring", Operation::reduce_scatter, ring::reduce_scatter, any_shape},
    {"recursive", Operation::reduce_scatter, recursive::reduce_scatter, any_shape},
    {"hierarchical", Operation::reduce_scatter, hierarchical::reduce_scatter, any_hosts},
    {"naive", Operation::all_gather, naive::all_gather, any_shape},
    {"direct", Operation::all_gather, direct::all_gather, any_shape},
    {"binomial_tree", Operation::all_gather, binomial_tree::all_gather, any_shape},
    {"ring", Operation::all_gather, ring::all_gather, any_shape},
    {"recursive", Operation::all_gather, recursive::all_gather, any_shape},
    {"hierarchical", Operation::all_gather, hierarchical::all_gather, any_hosts},
    {"naive", Operation::scatter, naive::scatter, any_shape},
    {"binomial_tree", Operation::scatter, binomial_tree::scatter, any_shape},
    {"hierarchical", Operation::scatter, hierarchical::scatter, any_hosts},
    {"naive", Operation::gather, naive::gather, any_shape},
    {"binomial_tree", Operation::gather, binomial_tree::gather, any_shape},
    {"hierarchical", Operation::gather, hierarchical::gather, any_hosts},
    {"naive", Operation::all_to_all, naive::all_to_all, any_shape},
    {"direct", Operation::all_to_all, direct::all_to_all, any_shape},
    {"pairwise", Operation::all_to_all, pairwise::all_to_all, any_shape},
    {"hierarchical", Operation::all_to_all, hierarchical::all_to_all, any_hosts},
};

}  // namespace

std::span<const Algorithm> algorithms() {
  return kAlgorithms;
}

Rounding rounding(const Algorithm& algorithm) {
  return algorithm.make({.ranks = 1}).rounding;
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
