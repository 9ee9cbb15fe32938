// The operations that both sides of the benchmark run, of f32, and how long their vectors are.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/measure/known_call.h"

namespace benchmarks {

// "sendrecv" is comm's send, to the next rank while receiving from the one before.
inline lockstep::comm::Operation operation_named(const std::string& name) {
  using lockstep::comm::Operation;
  for (const Operation operation : {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
                                    Operation::broadcast, Operation::all_to_all, Operation::send}) {
    if (lockstep::measure::name_of(operation) == name) return operation;
  }
  std::exit(2);
}

// Of which the longest buffer of a rank has `bytes`, or as few more as whole elements make.
inline lockstep::measure::CallShape shape_of(const std::string& operation, const std::string& bytes, int ranks) {
  lockstep::measure::CallShape shape{.operation = operation_named(operation)};
  shape.count = lockstep::measure::count_for(std::atoll(bytes.c_str()), shape, ranks);
  return shape;
}

}  // namespace benchmarks
