// Counts the bytes of libtorch's CPU tensors exactly, for tests and benchmarks: what they say about memory does not
// depend on what malloc keeps.
#pragma once

#include <cstdint>

namespace lockstep::nn {

// From the first one on, which no other thread may use libtorch beside, tensors of this process come from a counting
// allocator over libtorch's own.
class LiveBytes {
 public:
  LiveBytes();

  int64_t now() const;   // allocated since this was made, less what was freed; below 0 when older tensors were freed
  int64_t peak() const;  // the most of that, of whatever thread, since this or a later LiveBytes was made

 private:
  int64_t before_;
};

}  // namespace lockstep::nn
