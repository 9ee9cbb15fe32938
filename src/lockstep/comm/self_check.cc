#include "lockstep/comm/self_check.h"

#include <algorithm>
#include <memory>
#include <random>

#include "lockstep/base/units.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {

StartedExercise::StartedExercise(ProcessGroup& group, const Exercise& exercise, bool asynchronous)
    : exercise_(exercise), rank_(group.rank()), size_(group.size()) {
  input_ = {.count = input_count(exercise, rank_, size_), .type = exercise.type};
  output_ = {.count = output_count(exercise, rank_, size_), .type = exercise.type};
  const int64_t bytes = round_up(input_.bytes(), kAlignmentBytes) + output_.bytes();
  if (exercise.registered) registered_ = group.allocate(bytes);
  heap_.resize(exercise.registered ? 0 : static_cast<size_t>(bytes));
  place_buffers(exercise.registered ? static_cast<char*>(registered_.data()) : heap_.data());
  const std::vector<char> input = input_of(exercise, rank_, size_);
  copy(input_.data, input.data(), input_.bytes(), false);
  make_call(group, asynchronous);
}

// The input, then the output, unless one is part of the other.
void StartedExercise::place_buffers(char* memory) {
  input_.data = memory;
  char* const output = memory + round_up(input_.bytes(), kAlignmentBytes);
  output_.data = output;
  const int64_t element = element_size(exercise_.type);
  switch (exercise_.operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
    case Operation::barrier:
      output_.data = memory;
      break;
    case Operation::reduce:
    case Operation::all_to_all:
      if (exercise_.in_place) output_.data = memory;
      break;
    case Operation::scatter:
    case Operation::reduce_scatter:
      if (exercise_.in_place && input_.count > 0) output_.data = memory + part_begin(true, rank_) * element;
      break;
    case Operation::gather:
    case Operation::all_gather:
      if (exercise_.in_place && output_.count > 0) input_.data = output + part_begin(false, rank_) * element;
      break;
    case Operation::send:
    case Operation::receive:
      break;
  }
}

// Where rank r's part of this rank's input or output begins.
int64_t StartedExercise::part_begin(bool of_input, int r) const {
  int64_t begin = 0;
  for (int before = 0; before < r; ++before) {
    begin += of_input ? part_count(exercise_, rank_, before) : part_count(exercise_, before, rank_);
  }
  return begin;
}

void StartedExercise::make_call(ProcessGroup& group, bool asynchronous) {
  if (exercise_.batched) return exchange_in_batch(group, asynchronous);
  if (is_message(exercise_.operation)) return send_around(group, asynchronous);
  Call call{.operation = exercise_.operation,
            .input = input_,
            .output = output_,
            .reduction = exercise_.reduction,
            .options = {.algorithm = exercise_.algorithm}};
  if (has_root(exercise_.operation)) call.peer = exercise_.root;
  std::vector<int64_t> sent, received;
  for (int r = 0; r < size_; ++r) {
    sent.push_back(part_count(exercise_, rank_, r));
    received.push_back(part_count(exercise_, r, rank_));
  }
  if (exercise_.uneven && exercise_.operation != Operation::all_gather) call.input_counts = sent;
  if (exercise_.uneven && exercise_.operation != Operation::reduce_scatter) call.output_counts = received;
  if (asynchronous) {
    works_.push_back(group.submit(call));
  } else {
    group.run(call);
  }
}

void StartedExercise::send_around(ProcessGroup& group, bool asynchronous) {
  if (size_ == 1) return copy(output_.data, input_.data, input_.bytes(), false);
  // A ring of blocking sends may wait for one another, so the sends never block here.
  works_.push_back(group.send_async(input_, (rank_ + 1) % size_));
  const int before = (rank_ + size_ - 1) % size_;
  if (asynchronous) {
    works_.push_back(group.receive_async(output_, before));
  } else {
    group.receive(output_, before);
  }
}

void StartedExercise::exchange_in_batch(ProcessGroup& group, bool asynchronous) {
  const int64_t element = element_size(exercise_.type);
  const auto part = [&](bool of_input, int r) {
    Buffer buffer = of_input ? input_ : output_;
    buffer.data = static_cast<char*>(buffer.data) + part_begin(of_input, r) * element;
    buffer.count = of_input ? part_count(exercise_, rank_, r) : part_count(exercise_, r, rank_);
    return buffer;
  };
  std::vector<Message> messages;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    messages.push_back({Operation::send, part(true, r), r});
    messages.push_back({Operation::receive, part(false, r), r});
  }
  copy(part(false, rank_).data, part(true, rank_).data, part(true, rank_).bytes(), false);
  std::ranges::shuffle(messages, std::mt19937_64(exercise_.seed + static_cast<uint64_t>(rank_)));
  if (asynchronous) {
    works_ = group.batch_async(messages);
  } else {
    group.batch(messages);
  }
}

std::string StartedExercise::finish() {
  for (const Work& work : works_) work.wait();
  const std::vector<char> expected = expected_output(exercise_, rank_, size_);
  const auto* const output = static_cast<const char*>(output_.data);
  for (int64_t i = 0; i < output_.count; ++i) {
    if (!same_element(exercise_.type, output, expected.data(), i)) {
      return text("rank ", rank_, " of ", size_, ": element ", i, " of ", output_.count, " is wrong after ",
                  describe(exercise_));
    }
  }
  return "";
}

// -- which exercises ------------------------------------------------------------------------------------------------

namespace {

// Every operation, in the forms that differ in more than their data.
constexpr Exercise kForms[] = {
    {.operation = Operation::all_reduce},
    {.operation = Operation::reduce_scatter},
    {.operation = Operation::reduce_scatter, .uneven = true},
    {.operation = Operation::all_gather},
    {.operation = Operation::all_gather, .uneven = true},
    {.operation = Operation::broadcast},
    {.operation = Operation::reduce},
    {.operation = Operation::scatter},
    {.operation = Operation::gather},
    {.operation = Operation::all_to_all},
    {.operation = Operation::all_to_all, .uneven = true},
    {.operation = Operation::send},
    {.operation = Operation::send, .batched = true},
    {.operation = Operation::send, .uneven = true, .batched = true},
    {.operation = Operation::barrier},
};

constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16,
                               DataType::i32, DataType::i64, DataType::u8};

std::span<const Reduction> reductions_of(Operation operation, DataType type) {
  static constexpr Reduction kAll[] = {Reduction::sum, Reduction::min, Reduction::max, Reduction::average};
  const bool integer = type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
  return {kAll, static_cast<size_t>(!reduces(operation) ? 1 : integer ? 3 : 4)};
}

// Sizes of which most are small, some need more than a slot, and a few more than any buffer on the way.
int64_t random_count(std::mt19937_64& random) {
  const uint64_t kind = random() % 64;
  return static_cast<int64_t>(random() % (kind == 0 ? 60'000 : kind < 16 ? 6000 : 20));
}

// Empty for what has none.
std::string_view random_algorithm(std::mt19937_64& random, Operation operation) {
  std::vector<std::string_view> names{""};
  for (const collective::Algorithm& each : collective::algorithms()) {
    if (collective::name(each.operation) == name(operation)) names.push_back(each.name);
  }
  return names[random() % names.size()];
}

Exercise random_exercise(std::mt19937_64& random, size_t group_size) {
  Exercise exercise = kForms[random() % std::size(kForms)];
  exercise.type = kTypes[random() % std::size(kTypes)];
  const std::span<const Reduction> reductions = reductions_of(exercise.operation, exercise.type);
  exercise.reduction = reductions[random() % reductions.size()];
  exercise.count = random_count(random);
  exercise.root = static_cast<int>(random() % group_size);
  exercise.seed = random();
  exercise.in_place = random() % 2 == 0;
  if (random() % 3 == 0) exercise.algorithm = random_algorithm(random, exercise.operation);
  return exercise;
}

// All ranks, and some of them, three times.
std::vector<std::vector<int>> random_memberships(std::mt19937_64& random, int size) {
  std::vector<std::vector<int>> memberships(4);
  for (int r = 0; r < size; ++r) memberships[0].push_back(r);
  for (size_t g = 1; g < memberships.size(); ++g) {
    for (int r = 0; r < size; ++r) {
      if (random() % 2 == 0 || (r == size - 1 && memberships[g].empty())) memberships[g].push_back(r);
    }
  }
  return memberships;
}

}  // namespace

std::vector<Exercise> every_exercise(int size, int64_t count) {
  std::vector<Exercise> exercises;
  uint64_t seed = static_cast<uint64_t>(count);
  for (Exercise exercise : kForms) {
    for (const DataType type : kTypes) {
      for (const Reduction reduction : reductions_of(exercise.operation, type)) {
        ++seed;
        exercise.type = type;
        exercise.reduction = reduction;
        exercise.count = count;
        exercise.root = static_cast<int>(seed % static_cast<uint64_t>(size));
        exercise.in_place = seed % 2 == 0;
        exercise.registered = seed % 3 == 0;
        exercise.seed = seed;
        exercises.push_back(exercise);
      }
    }
  }
  return exercises;
}

std::string check_algorithms(ProcessGroup& group, int64_t count, std::span<const DataType> types) {
  for (Exercise exercise : every_exercise(group.size(), count)) {
    const bool is_wanted = types.empty() || std::ranges::find(types, exercise.type) != types.end();
    if (is_message(exercise.operation) || !is_wanted) continue;
    for (const collective::Algorithm& algorithm : collective::algorithms()) {
      if (collective::name(algorithm.operation) != name(exercise.operation)) continue;
      exercise.algorithm = algorithm.name;
      collective::Traffic expected = group.traffic();
      const collective::Program program = program_of(exercise, group.size());
      expected += collective::count(program, piece_sizes(exercise, program),
                                    element_size(exercise.type))[static_cast<size_t>(group.rank())];
      const std::string wrong = StartedExercise(group, exercise, exercise.seed % 5 == 0).finish();
      if (!wrong.empty()) return wrong;
      if (group.traffic() != expected) {
        return text("rank ", group.rank(), ": what ", describe(exercise), " sent is not what its program says");
      }
    }
  }
  return "";
}

std::string run_random_program(ProcessGroup& world, uint64_t seed) {
  constexpr int kCalls = 30;
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(world.rank()));
  const std::vector<std::vector<int>> memberships = random_memberships(common, world.size());
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (const std::vector<int>& members : memberships) {
    const bool mine = std::ranges::find(members, world.rank()) != members.end();
    groups.push_back(mine ? world.split(members, "random") : nullptr);
  }
  std::vector<std::unique_ptr<StartedExercise>> started;
  for (int i = 0; i < kCalls; ++i) {
    const size_t g = common() % groups.size();
    Exercise exercise = random_exercise(common, memberships[g].size());
    if (groups[g] == nullptr) continue;
    exercise.registered = own() % 4 == 0;
    started.push_back(std::make_unique<StartedExercise>(*groups[g], exercise, own() % 2 == 0));
    if (own() % 3 != 0) continue;
    if (const std::string wrong = started.back()->finish(); !wrong.empty()) return wrong;
    started.pop_back();
  }
  for (const auto& exercise : started) {
    if (const std::string wrong = exercise->finish(); !wrong.empty()) return wrong;
  }
  return "";
}

namespace {

// All but the root begin with other values.
std::string broadcast_once(ProcessGroup& group, int64_t count, int root, bool asynchronous, std::mt19937_64& common) {
  std::vector<uint64_t> values(static_cast<size_t>(count));
  std::ranges::generate(values, [&] { return common() % 1000; });  // many are the numbers of calls
  std::vector<uint64_t> got(values);
  if (group.rank() != root) std::ranges::fill(got, 0);
  const Buffer buffer{.data = got.data(), .count = count, .type = DataType::i64};
  if (asynchronous) {
    group.broadcast_async(buffer, root).wait();
  } else {
    group.broadcast(buffer, root);
  }
  if (got == values) return "";
  return text("rank ", group.rank(), ": wrong after a broadcast of ", count, " i64 from rank ", root, " on group '",
              group.name(), "'");
}

}  // namespace

std::string run_broadcast_bursts(ProcessGroup& world, uint64_t seed) {
  constexpr int kBursts = 8;
  constexpr int64_t kLongest = 130;
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(world.rank()));
  std::vector<int> turned(static_cast<size_t>(world.size()));
  for (int r = 0; r < world.size(); ++r) turned[static_cast<size_t>(r)] = (r + 1) % world.size();
  const auto second = world.split(turned, "turned");
  for (int burst = 0; burst < kBursts; ++burst) {
    ProcessGroup& group = common() % 2 == 0 ? world : *second;
    const int root = static_cast<int>(common() % static_cast<uint64_t>(world.size()));
    const auto count = static_cast<int64_t>(common() % (common() % 4 == 0 ? kLongest : 9));
    const bool asynchronous = own() % 4 == 0;
    for (uint64_t left = common() % (common() % 3 == 0 ? 600 : 12); left > 0; --left) {
      if (std::string wrong = broadcast_once(group, count, root, asynchronous, common); !wrong.empty()) return wrong;
    }
    if (common() % 4 == 0) group.barrier();
    const Exercise exercise = random_exercise(common, world.size());
    if (common() % 3 != 0) continue;
    if (std::string wrong = StartedExercise(group, exercise, false).finish(); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace lockstep::comm
