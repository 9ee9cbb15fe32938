// The shared memory of the ranks of one host, mapped into this process (layout.h draws it).
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/host/layout.h"

namespace lockstep::comm::host {

class Segment {
 public:
  struct Options {
    int ranks = 1;
    bool across_processes = false;  // a file that other processes can map, with an arena for each rank
    std::chrono::milliseconds default_deadline{600'000};
  };

  //   throws  InvalidArgument for an impossible number of ranks, Unsupported when the host gives no address space
  static std::shared_ptr<Segment> create(const Options& options);
  // Maps the segment behind a descriptor, which is closed.
  //   throws  InvalidArgument when it is no segment of this version
  static std::shared_ptr<Segment> map(int descriptor);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Control& control() const { return *reinterpret_cast<Control*>(base_); }
  int world_size() const { return control().world_size; }
  char* at(int64_t offset) const { return base_ + offset; }
  int descriptor() const { return descriptor_; }

  // Whether the other ranks can read and write these bytes where they lie. With ranks as threads: always.
  bool reachable(const void* data, int64_t bytes) const;
  // An address that means the same to every rank, and back.
  uint64_t encode(const void* data) const;
  char* decode(uint64_t address) const;

 private:
  Segment(char* base, int64_t bytes, int descriptor) : base_(base), bytes_(bytes), descriptor_(descriptor) {}
  bool across_processes() const { return control().arena_bytes > 0; }

  char* base_;
  int64_t bytes_;
  int descriptor_;  // -1: none
};

}  // namespace lockstep::comm::host
