#include "lockstep/measure/known_call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::measure {
namespace {

using comm::DataType;
using comm::Operation;
using comm::Reduction;

constexpr int kRanksThatCount = 64;  // the others add 0: sums stay exact in bf16, which has 8 bits

uint32_t scrambled(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9;
  x ^= x >> 29;
  x *= 0x94d049bb133111eb;
  return static_cast<uint32_t>(x >> 40);
}

// Element i of a rank's input.
int64_t value(Operation operation, int rank, int64_t i) {
  if (!comm::reduces(operation)) return scrambled(rank, i) % 128;
  return rank < kRanksThatCount ? scrambled(rank, i) % 3 : 0;
}

uint16_t to_bf16(float whole_number) {  // of at most 8 bits, so without rounding
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(whole_number) >> 16);
}

float from_bf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

void store(DataType type, void* data, int64_t i, int64_t whole_number) {
  switch (type) {
    case DataType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(whole_number);
      return;
    case DataType::f64:
      static_cast<double*>(data)[i] = static_cast<double>(whole_number);
      return;
    case DataType::bf16:
      static_cast<uint16_t*>(data)[i] = to_bf16(static_cast<float>(whole_number));
      return;
    case DataType::f16:
      static_cast<_Float16*>(data)[i] = static_cast<_Float16>(whole_number);
      return;
    case DataType::i32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(whole_number);
      return;
    case DataType::i64:
      static_cast<int64_t*>(data)[i] = whole_number;
      return;
    case DataType::u8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(whole_number);
      return;
  }
}

double load(DataType type, const void* data, int64_t i) {
  switch (type) {
    case DataType::f32:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case DataType::f64:
      return static_cast<const double*>(data)[i];
    case DataType::bf16:
      return static_cast<double>(from_bf16(static_cast<const uint16_t*>(data)[i]));
    case DataType::f16:
      return static_cast<double>(static_cast<const _Float16*>(data)[i]);
    case DataType::i32:
      return static_cast<const int32_t*>(data)[i];
    case DataType::i64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DataType::u8:
      return static_cast<const uint8_t*>(data)[i];
  }
  return 0;
}

// Half a unit in the last place of a number near 1.
double rounding_of(DataType type) {
  switch (type) {
    case DataType::f32:
      return 0x1p-24;
    case DataType::f64:
      return 0x1p-53;
    case DataType::bf16:
      return 0x1p-8;
    case DataType::f16:
      return 0x1p-11;
    default:
      return 0;
  }
}

comm::Buffer part_of(const comm::Registered& memory, int64_t begin, int64_t count, DataType type) {
  return {.data = static_cast<char*>(memory.data()) + begin * comm::element_size(type), .count = count, .type = type};
}

}  // namespace

std::string_view name_of(Operation operation) {
  return operation == Operation::send ? "sendrecv" : comm::name(operation);
}

bool deals_in_blocks(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::all_gather ||
         operation == Operation::scatter || operation == Operation::gather || operation == Operation::all_to_all;
}

int64_t bytes_of(const CallShape& shape, int ranks) {
  return shape.count * (deals_in_blocks(shape.operation) ? ranks : 1) * comm::element_size(shape.type);
}

int64_t count_for(int64_t bytes, const CallShape& shape, int ranks) {
  const int64_t of_one = comm::element_size(shape.type) * (deals_in_blocks(shape.operation) ? ranks : 1);
  return std::max<int64_t>(1, (bytes + of_one - 1) / of_one);
}

double bus_factor(Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == Operation::all_reduce) return 2 * others;
  return deals_in_blocks(operation) ? others : 1;
}

KnownCall::KnownCall(comm::ProcessGroup& group, const CallShape& shape, bool in_place, std::string_view algorithm,
                     const CallMemory& memory)
    : group_(group), shape_(shape), algorithm_(algorithm), rank_(group.rank()), ranks_(group.size()) {
  place_buffers(in_place, memory);
  call_ = {.operation = shape.operation, .input = input_, .output = output_, .reduction = shape.reduction};
  if (comm::has_root(shape.operation)) call_.peer = shape.root;
  call_.options.algorithm = algorithm_;
  if (shape.operation == Operation::all_reduce || shape.operation == Operation::broadcast) call_.input = output_;
}

// Where a rank's block is part of the whole vector, in place means there; otherwise input and output are the same.
void KnownCall::place_buffers(bool in_place, const CallMemory& memory) {
  const int64_t block = shape_.count, whole = block * (deals_in_blocks(shape_.operation) ? ranks_ : 1);
  const bool is_root = rank_ == shape_.root;
  const auto at = [&](const comm::Registered& where, int64_t begin, int64_t count) {
    return part_of(where, begin, count, shape_.type);
  };
  const comm::Registered& other = in_place ? memory.first : memory.second;
  const int64_t own = in_place ? rank_ * block : 0;
  input_ = at(memory.first, 0, whole);
  output_ = at(other, 0, whole);
  switch (shape_.operation) {
    case Operation::scatter:
      if (!is_root) input_.count = 0;
      output_ = at(other, is_root ? own : 0, block);
      break;
    case Operation::reduce_scatter:
      output_ = at(other, own, block);
      break;
    case Operation::gather:
      if (!is_root) output_.count = 0;
      input_ = at(memory.first, is_root ? own : 0, block);
      break;
    case Operation::all_gather:
      input_ = at(memory.first, own, block);
      break;
    case Operation::reduce:
      if (!is_root) output_.count = 0;
      break;
    case Operation::broadcast:
      if (!is_root) input_.count = 0;
      copies_first_ = !in_place && is_root;
      break;
    case Operation::all_reduce:
      copies_first_ = !in_place;
      break;
    default:
      break;
  }
}

void KnownCall::fill() {
  std::memset(output_.data, 0xee, static_cast<size_t>(output_.bytes()));
  for (int64_t i = 0; i < input_.count; ++i) store(shape_.type, input_.data, i, value(shape_.operation, rank_, i));
}

void KnownCall::run() {
  if (shape_.operation == Operation::send) return send_around();
  if (copies_first_) {
    comm::copy(output_.data, input_.data, input_.bytes(), input_.bytes() >= comm::kStreamingBytes);
  }
  group_.run(call_);
}

void KnownCall::send_around() {
  if (ranks_ == 1) return comm::copy(output_.data, input_.data, input_.bytes(), false);
  const comm::Message both[] = {{Operation::receive, output_, (rank_ + ranks_ - 1) % ranks_},
                                {Operation::send, input_, (rank_ + 1) % ranks_}};
  group_.batch(both);
}

int64_t KnownCall::reduced(int64_t i) const {
  int64_t result = value(shape_.operation, 0, i);
  for (int rank = 1; rank < ranks_; ++rank) {
    const int64_t next = value(shape_.operation, rank, i);
    if (shape_.reduction == Reduction::min) {
      result = std::min(result, next);
    } else if (shape_.reduction == Reduction::max) {
      result = std::max(result, next);
    } else {
      result += next;
    }
  }
  return result;
}

// Element i of this rank's output; for an average the sum.
int64_t KnownCall::expected(int64_t i) const {
  const int64_t block = shape_.count;
  switch (shape_.operation) {
    case Operation::reduce_scatter:
      return reduced(rank_ * block + i);
    case Operation::all_reduce:
    case Operation::reduce:
      return reduced(i);
    case Operation::all_gather:
    case Operation::gather:
      return value(shape_.operation, static_cast<int>(i / block), i % block);
    case Operation::all_to_all:
      return value(shape_.operation, static_cast<int>(i / block), rank_ * block + i % block);
    case Operation::broadcast:
      return value(shape_.operation, shape_.root, i);
    case Operation::scatter:
      return value(shape_.operation, shape_.root, rank_ * block + i);
    default:
      return value(shape_.operation, (rank_ + ranks_ - 1) % ranks_, i);
  }
}

int64_t KnownCall::wrong() const {
  const bool averages = comm::reduces(shape_.operation) && shape_.reduction == Reduction::average;
  int64_t count = 0;
  for (int64_t i = 0; i < output_.count; ++i) {
    const double right = static_cast<double>(expected(i)) / (averages ? ranks_ : 1);
    const double allowed = averages ? right * rounding_of(shape_.type) : 0;
    if (!(std::abs(load(shape_.type, output_.data, i) - right) <= allowed)) ++count;
  }
  return count;
}

}  // namespace lockstep::measure
