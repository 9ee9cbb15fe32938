// Exact counts of the memory that tensors take in this process, which the resident size of a process is not: it also
// has code, libraries, and what an allocator keeps.
#pragma once

#include <cstdint>

namespace lockstep {

struct MemoryUse {
  int64_t bytes = 0;       // now
  int64_t peak_bytes = 0;  // largest since the last reset
};

// From here on every tensor of a CPU is counted, by its own bytes; before the first tensor that is to be counted.
void count_tensor_memory();

// Of tensors and of registered memory (registered_zeros, which is counted always), in all threads of the process.
MemoryUse memory_use();

// The peak begins anew at what is used now.
void reset_memory_peak();

// What is used beyond what was when this was made, which also begins a new peak. Counts tensors from the first one on.
class MemorySince {
 public:
  MemorySince();

  int64_t now() const { return memory_use().bytes - before_; }        // below 0 when older tensors were freed
  int64_t peak() const { return memory_use().peak_bytes - before_; }  // since this or a later one was made

 private:
  int64_t before_ = 0;
};

// For registered_zeros: memory was taken (positive) or given back (negative).
void add_registered_memory(int64_t bytes);

}  // namespace lockstep
