// Collectives over the ranks' staging blocks, for memory that others cannot reach.
//
// In stage_parts and stage_blocks a rank fills one half of its staging while others may still read the other half: it
// fills the first again only after a sync that they reached by having read it.
#include "lockstep/comm/host/execution.h"

namespace lockstep::comm::host {
namespace {

// How many of `count` elements lie in the block that starts at `begin`.
int64_t count_in_block(int64_t count, int64_t begin, int64_t block) {
  return std::clamp<int64_t>(count - begin, 0, block);
}

}  // namespace

void Collectives::Execution::move_staged() {
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return stage_reduction();
    case Operation::reduce_scatter:
    case Operation::scatter:
    case Operation::all_to_all:
      return stage_parts();
    case Operation::all_gather:
    case Operation::gather:
    case Operation::broadcast:
      return stage_blocks();
    case Operation::barrier:
    case Operation::send:
    case Operation::receive:
      return;
  }
}

// all_reduce, reduce: every rank adds a share of each block.
void Collectives::Execution::stage_reduction() {
  const bool to_all = call.operation == Operation::all_reduce;
  const int64_t block = kStagingBlockBytes / element_bytes();
  char* const own = view().staging(rank(), 0);
  for (int64_t begin = 0; begin < count(); begin += block) {
    const int64_t n = std::min(block, count() - begin);
    copy(own, input() + begin * element_bytes(), n * element_bytes(), false);
    sync();
    const Part share = share_of(rank(), size(), n, element_bytes());
    const auto address = [&](int r) { return view().staging(r, 0) + share.begin * element_bytes(); };
    if (to_all) {
      reduce_to_all(address, share.count, false);
    } else {
      reduce_to(address(call.peer), address, share.count);
    }
    sync();
    if (to_all || is_root()) copy(output() + begin * element_bytes(), own, n * element_bytes(), false);
  }
}

// reduce_scatter, scatter, all_to_all: a staging half is one block for each rank.
void Collectives::Execution::stage_parts() {
  const int64_t element = element_bytes();
  const int64_t block = kStagingBlockBytes / size() / kCacheLine * kCacheLine / element;
  const int64_t longest = longest_count();
  int half = 0;
  for (int64_t begin = 0; begin < longest; begin += block, half ^= 1) {
    for (int r = 0; r < size() && gives(); ++r) {
      const Part part = call.operation == Operation::all_to_all ? sent_part(rank(), r) : part_of(r);
      copy(view().staging(rank(), half) + r * block * element, input() + (part.begin + begin) * element,
           count_in_block(part.count, begin, block) * element, false);
    }
    sync();
    take_staged_parts(half, begin, block);
  }
}

// This rank's block of every rank's staging half.
void Collectives::Execution::take_staged_parts(int half, int64_t begin, int64_t block) {
  const int64_t element = element_bytes();
  const auto staged = [&](int r) { return view().staging(r, half) + rank() * block * element; };
  switch (call.operation) {
    case Operation::reduce_scatter:
      return reduce_to(output() + begin * element, staged, count_in_block(part_of(rank()).count, begin, block));
    case Operation::scatter:
      return copy(output() + begin * element, staged(call.peer), count_in_block(count(), begin, block) * element,
                  false);
    default:  // all_to_all
      for (int from = 0; from < size(); ++from) {
        const Part part = received_part(rank(), from);
        copy(output() + (part.begin + begin) * element, staged(from),
             count_in_block(part.count, begin, block) * element, false);
      }
  }
}

// all_gather, gather, broadcast: a staging half is one block for all.
void Collectives::Execution::stage_blocks() {
  const bool broadcasts = call.operation == Operation::broadcast;
  const bool takes = call.operation == Operation::all_gather || (is_root() != broadcasts);
  const int64_t element = element_bytes();
  const int64_t block = kStagingBlockBytes / element;
  const int64_t longest = longest_count();
  int half = 0;
  for (int64_t begin = 0; begin < longest; begin += block, half ^= 1) {
    if (gives()) {
      copy(view().staging(rank(), half), input() + begin * element,
           count_in_block(call.input.count, begin, block) * element, false);
    }
    sync();
    for (int r = 0; r < size() && takes; ++r) {
      if (broadcasts ? r != call.peer : r == rank()) continue;
      const Part part = broadcasts ? Part{0, count()} : part_of(r);
      copy(output() + (part.begin + begin) * element, view().staging(r, half),
           count_in_block(part.count, begin, block) * element, false);
    }
  }
  if (takes && !broadcasts) copy(output() + part_of(rank()).begin * element, input(), call.input.bytes(), false);
}

}  // namespace lockstep::comm::host
