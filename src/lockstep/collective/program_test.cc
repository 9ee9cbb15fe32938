// Every algorithm against the definition of its operation, on every number of ranks up to 17.
#include "lockstep/collective/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "lockstep/collective/interpret.h"
#include "lockstep/collective/validate.h"

namespace lockstep::collective {
namespace {

using ::testing::IsEmpty;

constexpr int kMaxRanks = 17;

using Values = std::vector<double>;

struct Case {
  Shape shape;
  std::vector<int64_t> sizes;
  std::vector<Values> inputs;
};

std::vector<std::string> messages(const Program& program) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(program)) result.push_back(problem.message());
  return result;
}

// The elements of a rank's buffer, piece by piece: the definition, written from the table in program.h.
std::vector<int> pieces_of(const Program& program, int rank, Buffer buffer) {
  std::vector<int> pieces;
  const Held held = defined(program, rank, buffer);
  for (int slot = 0; slot < held.count; ++slot) pieces.push_back(held.first + slot * held.stride);
  return pieces;
}

std::map<int, Values> cut(const Program& program, const Case& each, int rank) {
  std::map<int, Values> by_piece;
  auto next = each.inputs[static_cast<size_t>(rank)].begin();
  for (const int piece : pieces_of(program, rank, Buffer::input)) {
    const auto end = next + each.sizes[static_cast<size_t>(piece)];
    by_piece[piece] = Values(next, end);
    next = end;
  }
  return by_piece;
}

using Combine = std::function<double(double, double)>;

// What `rank` must have: for each piece of its output, what the ranks that have it in input make of it.
Values expected(const Program& program, const Case& each, int rank, const Combine& combine) {
  Values result;
  std::vector<std::map<int, Values>> inputs;
  for (int from = 0; from < program.ranks; ++from) inputs.push_back(cut(program, each, from));
  for (const int piece : pieces_of(program, rank, Buffer::output)) {
    Values sum;
    bool first = true;
    for (const auto& input : inputs) {
      const auto found = input.find(piece);
      if (found == input.end()) continue;
      for (size_t i = 0; i < found->second.size(); ++i) {
        if (first) sum.push_back(found->second[i]);
        if (!first) sum[i] = combine(sum[i], found->second[i]);
      }
      first = false;
    }
    result.insert(result.end(), sum.begin(), sum.end());
  }
  return result;
}

template <typename Random>
Shape random_shape(int ranks, Random& random) {
  Shape shape{ranks, static_cast<int>(random() % static_cast<unsigned>(ranks)), {}};
  const unsigned kind = random() % 4;  // one host, hosts of equal size in two orders, any
  const int hosts = 1 + static_cast<int>(random() % static_cast<unsigned>(ranks));
  for (int rank = 0; kind != 0 && rank < ranks; ++rank) {
    shape.host_of_rank.push_back(kind == 1   ? rank / hosts
                                 : kind == 2 ? rank % hosts
                                             : static_cast<int>(random() % static_cast<unsigned>(hosts)));
  }
  return shape;
}

template <typename Random>
Case random_case(const Program& program, const Shape& shape, std::vector<int64_t> sizes, Random& random) {
  Case result{shape, std::move(sizes), {}};
  for (int rank = 0; rank < program.ranks; ++rank) {
    Values input;
    for (const int piece : pieces_of(program, rank, Buffer::input)) {
      for (int64_t i = 0; i < result.sizes[static_cast<size_t>(piece)]; ++i) {
        input.push_back(static_cast<double>(random() % 100000) - 50000);  // sums are exact
      }
    }
    result.inputs.push_back(input);
  }
  return result;
}

void expect_definition(const Program& program, const Case& each) {
  const Combine kSum = [](double a, double b) { return a + b; };
  const Combine kMax = [](double a, double b) { return std::max(a, b); };
  for (const bool in_place : {false, true}) {
    if (in_place && program.operation == Operation::all_to_all) continue;
    for (const Combine& combine : {kSum, kMax}) {
      const std::vector<Values> outputs =
          interpret(program, each.sizes, each.inputs, {.combine = combine, .in_place = in_place});
      for (int rank = 0; rank < program.ranks; ++rank) {
        ASSERT_EQ(outputs[static_cast<size_t>(rank)], expected(program, each, rank, combine))
            << "rank " << rank << (in_place ? " in place" : "");
      }
    }
  }
}

std::string describe(const Algorithm& algorithm, const Shape& shape) {
  std::string hosts;
  for (const int host : shape.host_of_rank) hosts += " " + std::to_string(host);
  return text(algorithm.name, " ", name(algorithm.operation), " ranks ", shape.ranks, " root ", shape.root, " hosts",
              hosts);
}

TEST(Algorithms, KeepTheRulesOfPrograms) {
  std::mt19937 random(7);
  for (const Algorithm& algorithm : algorithms()) {
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
      for (int i = 0; i < 4; ++i) {
        const Shape shape = random_shape(ranks, random);
        EXPECT_THAT(messages(algorithm.make(shape)), IsEmpty()) << describe(algorithm, shape);
      }
    }
  }
}

class EveryAlgorithm : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, ComputesTheDefinition) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const Algorithm& algorithm = GetParam();
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const Shape shape = random_shape(ranks, random);
    const Program program = algorithm.make(shape);
    for (const int64_t count : {0, 1, ranks - 1, ranks, ranks + 1, 3 * ranks + 1, 151}) {
      const bool large = count > 4 * ranks && division(program.operation) != Division::whole;
      SCOPED_TRACE(text(describe(algorithm, shape), " count ", count, " seed ", seed));
      expect_definition(program, random_case(program, shape, piece_sizes(program, large ? 19 : count), random));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EveryAlgorithm, ComputesTheDefinitionOfUnevenSizes) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const Algorithm& algorithm = GetParam();
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const Shape shape = random_shape(ranks, random);
    const Program program = algorithm.make(shape);
    std::vector<int64_t> sizes(static_cast<size_t>(program.pieces));
    for (int64_t& size : sizes) size = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 20);
    SCOPED_TRACE(text(describe(algorithm, shape), " seed ", seed));
    expect_definition(program, random_case(program, shape, sizes, random));
    if (HasFatalFailure()) return;
  }
}

std::string test_name(const ::testing::TestParamInfo<Algorithm>& info) {
  return text(name(info.param.operation), "_", info.param.name);
}

INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm, ::testing::ValuesIn(algorithms().begin(), algorithms().end()), test_name);

// The values are such that every order of additions gives other bits; those of one piece must agree on all ranks.
TEST(AllReduce, GivesTheSameBitsOnAllRanks) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto to_float = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  for (const Algorithm& algorithm : algorithms()) {
    for (int ranks = 1; algorithm.operation == Operation::all_reduce && ranks <= kMaxRanks; ++ranks) {
      const Shape shape = random_shape(ranks, random);
      const Program program = algorithm.make(shape);
      std::vector<Values> inputs(static_cast<size_t>(ranks), Values(97));
      for (Values& input : inputs) std::ranges::generate(input, [&] { return uniform(random); });
      const auto outputs = interpret(program, piece_sizes(program, 97), inputs, {.round = to_float});
      for (const Values& output : outputs) EXPECT_EQ(output, outputs[0]) << describe(algorithm, shape);
    }
  }
}

TEST(Rounding, OnceAndPerHopAreWhatTheProgramsSay) {
  // 256 and eight times 1 in a type of 8 bits: 257 is none of its numbers and becomes 256 (ties to even).
  const auto to_bf16 = [](double value) { return std::nearbyint(value / 2) * 2; };
  const int ranks = 9;
  std::vector<Values> inputs(ranks, {1.0});
  inputs[0] = {256.0};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.operation != Operation::all_reduce) continue;
    const Program program = algorithm.make({.ranks = ranks});
    std::vector<int64_t> sizes(static_cast<size_t>(program.pieces), 0);
    sizes.back() = 1;
    const double result = interpret(program, sizes, inputs, {.round = to_bf16})[0][0];
    if (program.rounding == Rounding::once) {
      EXPECT_EQ(result, 264) << algorithm.name;
    }
    if (algorithm.name == "ring") {
      EXPECT_LT(result, 264);
    }
  }
}

TEST(MakeProgram, NamesWhatThereIs) {
  const auto message = [](Operation operation, std::string_view algorithm, const Shape& shape) -> std::string {
    try {
      make_program(operation, algorithm, shape);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(Operation::scatter, "ring", {}),
            "algorithm = ring: scatter has naive, binomial_tree, hierarchical");
  EXPECT_EQ(message(Operation::scatter, "naive", {.ranks = 2, .root = 2}),
            "root = 2: must be a rank, 0 to 1 (nearest: 0)");
  EXPECT_EQ(message(Operation::scatter, "naive", {.ranks = 0}), "ranks = 0: must be at least 1 (nearest: 1)");
  EXPECT_EQ(message(Operation::all_reduce, "hierarchical", {.ranks = 2, .host_of_rank = {0}}),
            "host_of_rank = 1 entries: must have one for each of 2 ranks");
}

TEST(Layout, CountsElementsIn64Bits) {
  const Program program = make_program(Operation::all_gather, "ring", {.ranks = 3});
  const std::vector<int64_t> sizes = {int64_t{3} << 31, 0, 5};
  const Layout layout(program, sizes, 1);
  EXPECT_EQ(layout.range({Buffer::output, 2, 1}), (mesh::Range{int64_t{3} << 31, 5}));
  EXPECT_EQ(layout.length(Buffer::output), (int64_t{3} << 31) + 5);
  EXPECT_EQ(layout.length(Buffer::input), 0);
  EXPECT_THROW(Layout(program, std::vector<int64_t>{1, 2}, 0), InvalidArgument);
  EXPECT_THROW(Layout(program, std::vector<int64_t>{1, -2, 3}, 0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::collective
