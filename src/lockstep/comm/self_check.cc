#include "lockstep/comm/self_check.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "lockstep/base/units.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const auto below = static_cast<uint16_t>(bits >> 16);
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && below % 2 == 1);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}

float from_bf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Reads and writes element i of memory as the type it is added in: float for f32, bf16, f16.
template <class Accumulator>
Accumulator load(DataType type, const char* data, int64_t i) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  if (type == DataType::bf16) return static_cast<Accumulator>(from_bf16(read(uint16_t{})));
  if (type == DataType::f16) return static_cast<Accumulator>(read(_Float16{}));
  return read(Accumulator{});
}

template <class Accumulator>
void store(DataType type, char* data, int64_t i, Accumulator value) {
  const auto write = [&](auto element) {
    std::memcpy(data + i * static_cast<int64_t>(sizeof element), &element, sizeof element);
  };
  if (type == DataType::bf16) return write(to_bf16(static_cast<float>(value)));
  if (type == DataType::f16) return write(static_cast<_Float16>(value));
  write(value);
}

template <class T>
T combine(Reduction reduction, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (reduction == Reduction::sum || reduction == Reduction::average) return a + b;
  } else if (reduction == Reduction::sum) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  if (a == b) return b;
  return (a < b) == (reduction == Reduction::min) ? a : b;
}

// The tree over ranks [first, first + n): split at the largest power of two below n.
template <class T>
T tree(const Exercise& exercise, const std::vector<std::vector<char>>& inputs, size_t first, size_t n, int64_t i) {
  if (n == 1) return load<T>(exercise.type, inputs[first].data(), i);
  const size_t left = std::bit_ceil(n) / 2;
  return combine(exercise.reduction, tree<T>(exercise, inputs, first, left, i),
                 tree<T>(exercise, inputs, first + left, n - left, i));
}

// to[i] <- the reduction of element begin + i, i < count.
template <class T>
void reduce_naively(const Exercise& exercise, const std::vector<std::vector<char>>& inputs, int64_t begin,
                    int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    T result = tree<T>(exercise, inputs, 0, inputs.size(), begin + i);
    if (exercise.reduction == Reduction::average) result = static_cast<T>(result / static_cast<T>(inputs.size()));
    store(exercise.type, to, i, result);
  }
}

void reduce_naively(const Exercise& exercise, const std::vector<std::vector<char>>& inputs, int64_t begin,
                    int64_t count, char* to) {
  switch (exercise.type) {
    case DataType::f32:
    case DataType::bf16:
    case DataType::f16:
      return reduce_naively<float>(exercise, inputs, begin, count, to);
    case DataType::f64:
      return reduce_naively<double>(exercise, inputs, begin, count, to);
    case DataType::i32:
      return reduce_naively<int32_t>(exercise, inputs, begin, count, to);
    case DataType::i64:
      return reduce_naively<int64_t>(exercise, inputs, begin, count, to);
    case DataType::u8:
      return reduce_naively<uint8_t>(exercise, inputs, begin, count, to);
  }
}

template <class T>
bool both_nan(DataType type, const char* a, const char* b, int64_t i) {
  return std::isnan(load<T>(type, a, i)) && std::isnan(load<T>(type, b, i));
}

bool same_element(DataType type, const char* a, const char* b, int64_t i) {
  const int64_t bytes = element_size(type);
  if (std::memcmp(a + i * bytes, b + i * bytes, static_cast<size_t>(bytes)) == 0) return true;
  if (type == DataType::f64) return both_nan<double>(type, a, b, i);
  const bool floating = type == DataType::f32 || type == DataType::bf16 || type == DataType::f16;
  return floating && both_nan<float>(type, a, b, i);
}

int64_t input_count(const Exercise& exercise, int size) {
  return exercise.operation == Operation::reduce_scatter ? exercise.count * size : exercise.count;
}

int64_t output_count(const Exercise& exercise, int size) {
  return exercise.operation == Operation::all_gather ? exercise.count * size : exercise.count;
}

}  // namespace

std::string describe(const Exercise& exercise) {
  return text(name(exercise.operation), "(", name(exercise.reduction), ") of ", exercise.count, " ",
              name(exercise.type), " root ", exercise.root, exercise.registered ? " registered" : "",
              exercise.in_place ? " in place" : "", " seed ", exercise.seed);
}

std::vector<char> input_of(const Exercise& exercise, int rank, int size) {
  const int64_t count = input_count(exercise, size);
  std::vector<char> values(static_cast<size_t>(count * element_size(exercise.type)));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits =
        mix(exercise.seed * 0x100000001b3 + static_cast<uint64_t>(rank) * 0x1000003 + static_cast<uint64_t>(i));
    const bool is_nan = bits % 1024 == 0;
    const double value = is_nan ? std::nan("") : static_cast<double>(static_cast<int64_t>(bits) >> 16) * 0x1p-46;
    switch (exercise.type) {
      case DataType::f64:
        store(exercise.type, values.data(), i, value);
        break;
      case DataType::f32:
      case DataType::bf16:
      case DataType::f16:
        store(exercise.type, values.data(), i, static_cast<float>(value));
        break;
      case DataType::i32:
        store(exercise.type, values.data(), i, static_cast<int32_t>(bits));
        break;
      case DataType::i64:
        store(exercise.type, values.data(), i, static_cast<int64_t>(bits));
        break;
      case DataType::u8:
        store(exercise.type, values.data(), i, static_cast<uint8_t>(bits));
        break;
    }
  }
  return values;
}

std::vector<char> expected_output(const Exercise& exercise, int rank, int size) {
  std::vector<std::vector<char>> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input_of(exercise, r, size));
  std::vector<char> output(static_cast<size_t>(output_count(exercise, size) * element_size(exercise.type)));
  switch (exercise.operation) {
    case Operation::all_reduce:
      reduce_naively(exercise, inputs, 0, exercise.count, output.data());
      break;
    case Operation::reduce_scatter:
      reduce_naively(exercise, inputs, rank * exercise.count, exercise.count, output.data());
      break;
    case Operation::all_gather:
      output.clear();
      for (const auto& input : inputs) output.insert(output.end(), input.begin(), input.end());
      break;
    case Operation::broadcast:
      output = inputs[static_cast<size_t>(exercise.root)];
      break;
    case Operation::send:
    case Operation::receive:
      output = inputs[static_cast<size_t>((rank + size - 1) % size)];
      break;
    default:
      output = inputs[static_cast<size_t>(rank)];
      break;
  }
  return output;
}

StartedExercise::StartedExercise(ProcessGroup& group, const Exercise& exercise, bool asynchronous)
    : exercise_(exercise), rank_(group.rank()), size_(group.size()) {
  const std::vector<char> input = input_of(exercise, rank_, size_);
  const int64_t element = element_size(exercise.type);
  const int64_t output_bytes = output_count(exercise, size_) * element;
  const int64_t gap = round_up(static_cast<int64_t>(input.size()), kAlignmentBytes);
  if (exercise.registered) registered_ = group.allocate(gap + output_bytes);
  heap_.resize(exercise.registered ? 0 : static_cast<size_t>(gap + output_bytes));
  input_ = exercise.registered ? static_cast<char*>(registered_.data()) : heap_.data();
  output_ = input_ + gap;
  switch (exercise.operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
    case Operation::barrier:
      output_ = input_;
      break;
    case Operation::reduce_scatter:
      if (exercise.in_place) output_ = input_ + rank_ * exercise.count * element;
      break;
    case Operation::all_gather:
      if (exercise.in_place) input_ = output_ + rank_ * exercise.count * element;
      break;
    default:
      break;
  }
  copy(input_, input.data(), static_cast<int64_t>(input.size()), false);
  make_call(group, asynchronous);
}

void StartedExercise::make_call(ProcessGroup& group, bool asynchronous) {
  const Buffer input{.data = input_, .count = input_count(exercise_, size_), .type = exercise_.type};
  const Buffer output{.data = output_, .count = output_count(exercise_, size_), .type = exercise_.type};
  if (exercise_.operation == Operation::send || exercise_.operation == Operation::receive) {
    if (size_ == 1) return copy(output_, input_, input.bytes(), false);
    // A ring of blocking sends may wait for one another, so the sends never block here.
    works_.push_back(group.send_async(input, (rank_ + 1) % size_));
    const Call receive{.operation = Operation::receive, .output = output, .peer = (rank_ + size_ - 1) % size_};
    if (asynchronous) {
      works_.push_back(group.submit(receive));
    } else {
      group.run(receive);
    }
    return;
  }
  Call call{.operation = exercise_.operation, .input = input, .output = output, .reduction = exercise_.reduction};
  if (exercise_.operation == Operation::broadcast) call.peer = exercise_.root;
  if (asynchronous) {
    works_.push_back(group.submit(call));
  } else {
    group.run(call);
  }
}

std::string StartedExercise::finish() {
  for (const Work& work : works_) work.wait();
  const std::vector<char> expected = expected_output(exercise_, rank_, size_);
  const int64_t count = output_count(exercise_, size_);
  for (int64_t i = 0; i < count; ++i) {
    if (!same_element(exercise_.type, output_, expected.data(), i)) {
      return text("rank ", rank_, " of ", size_, ": element ", i, " of ", count, " is wrong after ",
                  describe(exercise_));
    }
  }
  return "";
}

}  // namespace lockstep::comm
