#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/collective/interpret.h"
#include "lockstep/comm/self_check.h"

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

double rounded(DataType type, double value) {
  switch (type) {
    case DataType::f32:
      return static_cast<float>(value);
    case DataType::bf16:
      return from_bf16(to_bf16(static_cast<float>(value)));
    case DataType::f16:
      return static_cast<double>(static_cast<_Float16>(static_cast<float>(value)));
    default:
      return value;
  }
}

// Whether the order of additions shows. f64's values have 48 bits, so that their sums over 32 ranks are exact.
bool rounds_sums(DataType type) {
  return type == DataType::f32 || type == DataType::bf16 || type == DataType::f16;
}

double load_double(DataType type, const std::vector<char>& values, int64_t i) {
  return type == DataType::f64 ? load<double>(type, values.data(), i) : load<float>(type, values.data(), i);
}

void store_double(DataType type, std::vector<char>& values, int64_t i, double value) {
  if (type == DataType::f64) return store(type, values.data(), i, value);
  store(type, values.data(), i, static_cast<float>(value));
}

// As the program rounds on its way.
std::vector<char> reduced_by_hops(const Exercise& exercise, const collective::Program& program,
                                  const std::vector<std::vector<char>>& inputs, int rank) {
  std::vector<std::vector<double>> values(inputs.size());
  for (size_t r = 0; r < inputs.size(); ++r) {
    const auto count = static_cast<int64_t>(inputs[r].size()) / element_size(exercise.type);
    for (int64_t i = 0; i < count; ++i) values[r].push_back(load_double(exercise.type, inputs[r], i));
  }
  collective::Interpretation how;
  how.combine = [&](double left, double right) {
    const bool averages = exercise.reduction == Reduction::average;
    return combine(averages ? Reduction::sum : exercise.reduction, left, right);
  };
  how.round = [&](double value) { return rounded(exercise.type, value); };
  const std::vector<double> sums =
      collective::interpret(program, piece_sizes(exercise, program), values, how)[static_cast<size_t>(rank)];
  std::vector<char> output(sums.size() * static_cast<size_t>(element_size(exercise.type)));
  for (size_t i = 0; i < sums.size(); ++i) {
    const double divisor = exercise.reduction == Reduction::average ? static_cast<double>(program.ranks) : 1;
    store_double(exercise.type, output, static_cast<int64_t>(i), rounded(exercise.type, sums[i] / divisor));
  }
  return output;
}

bool is_exchange(const Exercise& exercise) {
  return exercise.operation == Operation::all_to_all || exercise.batched;
}

void append(std::vector<char>& to, const Exercise& exercise, const std::vector<char>& from, int64_t begin,
            int64_t count) {
  const auto first = from.begin() + begin * element_size(exercise.type);
  to.insert(to.end(), first, first + count * element_size(exercise.type));
}

}  // namespace

std::string describe(const Exercise& exercise) {
  return text(name(exercise.operation), "(", name(exercise.reduction), ") of ", exercise.count, " ",
              name(exercise.type), " root ", exercise.root, exercise.registered ? " registered" : "",
              exercise.in_place ? " in place" : "", exercise.uneven ? " uneven" : "",
              exercise.batched ? " batched" : "", exercise.algorithm.empty() ? "" : " by ", exercise.algorithm,
              " seed ", exercise.seed);
}

int64_t part_count(const Exercise& exercise, int from, int to) {
  if (!exercise.uneven) return exercise.count;
  int key = from * 64 + to;
  if (exercise.operation == Operation::reduce_scatter) key = to;
  if (exercise.operation == Operation::all_gather) key = from;
  // In place, ranks give one another what they get.
  if (exercise.operation == Operation::all_to_all && exercise.in_place)
    key = std::min(from, to) * 64 + std::max(from, to);
  const uint64_t bits = mix(exercise.seed * 0x1000193 + static_cast<uint64_t>(key));
  return bits % 4 == 0 ? 0 : static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(2 * exercise.count + 1));
}

collective::Program program_of(const Exercise& exercise, int size) {
  return collective::make_program(collective::parse_operation(name(exercise.operation)), exercise.algorithm,
                                  {.ranks = size, .root = exercise.root});
}

std::vector<int64_t> piece_sizes(const Exercise& exercise, const collective::Program& program) {
  if (collective::division(program.operation) == collective::Division::whole) {
    return collective::piece_sizes(program, exercise.count);
  }
  std::vector<int64_t> sizes;
  const bool per_pair = collective::division(program.operation) == collective::Division::per_pair;
  for (int from = 0; from < program.ranks; ++from) {
    for (int to = 0; to < (per_pair ? program.ranks : 1); ++to) {
      const bool by_receiver = exercise.operation == Operation::reduce_scatter;
      sizes.push_back(by_receiver ? part_count(exercise, 0, from) : part_count(exercise, from, to));
    }
  }
  return sizes;
}

int64_t input_count(const Exercise& exercise, int rank, int size) {
  const Operation operation = exercise.operation;
  if (operation == Operation::scatter) return rank == exercise.root ? exercise.count * size : 0;
  if (operation == Operation::all_gather) return part_count(exercise, rank, 0);
  if (operation != Operation::reduce_scatter && !is_exchange(exercise)) return exercise.count;
  int64_t sum = 0;
  for (int to = 0; to < size; ++to) sum += part_count(exercise, rank, to);
  return sum;
}

int64_t output_count(const Exercise& exercise, int rank, int size) {
  const Operation operation = exercise.operation;
  if (operation == Operation::reduce) return rank == exercise.root ? exercise.count : 0;
  if (operation == Operation::gather) return rank == exercise.root ? exercise.count * size : 0;
  if (operation == Operation::reduce_scatter) return part_count(exercise, 0, rank);
  if (operation != Operation::all_gather && !is_exchange(exercise)) return exercise.count;
  int64_t sum = 0;
  for (int from = 0; from < size; ++from) sum += part_count(exercise, from, rank);
  return sum;
}

std::vector<char> input_of(const Exercise& exercise, int rank, int size) {
  const int64_t count = input_count(exercise, rank, size);
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
  const int64_t count = output_count(exercise, rank, size);
  const auto root = static_cast<size_t>(exercise.root);
  std::vector<char> output;
  if (!exercise.algorithm.empty() && exercise.algorithm != collective::kNative && rounds_sums(exercise.type)) {
    const collective::Program program = program_of(exercise, size);
    if (program.rounding == collective::Rounding::per_hop) return reduced_by_hops(exercise, program, inputs, rank);
  }
  const auto reduce_from = [&](int64_t begin) {
    output.resize(static_cast<size_t>(count * element_size(exercise.type)));
    reduce_naively(exercise, inputs, begin, count, output.data());
  };
  if (is_exchange(exercise)) {
    for (int from = 0; from < size; ++from) {
      int64_t begin = 0;
      for (int to = 0; to < rank; ++to) begin += part_count(exercise, from, to);
      append(output, exercise, inputs[static_cast<size_t>(from)], begin, part_count(exercise, from, rank));
    }
    return output;
  }
  switch (exercise.operation) {
    case Operation::all_reduce:
      reduce_from(0);
      break;
    case Operation::reduce:
      if (rank == exercise.root) reduce_from(0);
      break;
    case Operation::reduce_scatter: {
      int64_t begin = 0;
      for (int to = 0; to < rank; ++to) begin += part_count(exercise, 0, to);
      reduce_from(begin);
      break;
    }
    case Operation::gather:
      if (rank != exercise.root) break;
      [[fallthrough]];
    case Operation::all_gather:
      for (const auto& input : inputs) output.insert(output.end(), input.begin(), input.end());
      break;
    case Operation::broadcast:
      output = inputs[root];
      break;
    case Operation::scatter:
      append(output, exercise, inputs[root], rank * count, count);
      break;
    case Operation::send:
    case Operation::receive:
      output = inputs[static_cast<size_t>((rank + size - 1) % size)];
      break;
    case Operation::all_to_all:  // above
    case Operation::barrier:
      output = inputs[static_cast<size_t>(rank)];
      break;
  }
  return output;
}

bool same_element(DataType type, const char* a, const char* b, int64_t i) {
  const int64_t bytes = element_size(type);
  if (std::memcmp(a + i * bytes, b + i * bytes, static_cast<size_t>(bytes)) == 0) return true;
  if (type == DataType::f64) return both_nan<double>(type, a, b, i);
  const bool floating = type == DataType::f32 || type == DataType::bf16 || type == DataType::f16;
  return floating && both_nan<float>(type, a, b, i);
}

}  // namespace lockstep::comm
