// The ledger of what a rank's training states take, term by term, before anything is allocated. Activations are not in
// it.
#pragma once

#include <cstdint>

#include "lockstep/spec/plan.h"

namespace lockstep::cost {

// How the numbers of a parameter are kept, in bytes each.
struct StateTypes {
  double weight = 4;
  double gradient = 4;   // accumulated and reduced
  double optimizer = 8;  // moments, and master weights where there are some

  double total() const { return weight + gradient + optimizer; }
};
inline constexpr StateTypes kFp32 = {4, 4, 8};  // AdamW
// bf16 or fp16 weights with fp32 master weights; gradients of the model's type, or in fp32.
inline constexpr StateTypes kLowWithModelGradients = {2, 2, 12};
inline constexpr StateTypes kLowWithFp32Gradients = {2, 4, 12};

struct StateBytes {
  double weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + gradients + optimizer; }
};

// Of `parameters` parameters on one of `ranks` ranks that share them in ZeRO stage 0 to 3: stage 1 divides the
// optimizer's term by the ranks, 2 the gradients' as well, 3 the weights' as well.
//   fp32                        16P   8P + 8P/p    4P + 12P/p   16P/p
//   low, model-type gradients   16P   4P + 12P/p   2P + 14P/p   16P/p
//   low, fp32 gradients         18P   6P + 12P/p   2P + 16P/p   18P/p
//   source   Rajbhandari et al. 2020, "ZeRO", section 3 and figure 1
StateBytes state_bytes(double parameters, const StateTypes& types, int64_t stage, double ranks);

// What a plan's rank holds. `states` as above, and what sharding lends:
struct MemoryLedger {
  StateBytes states;
  double gathered = 0;        // stage 3: buffers for the units in use and next, or for all with gather = "stage"
  double flats = 0;           // stages 2 and 3: whole gradients being filled and under way
  double held_gradients = 0;  // stages 2 and 3, deferred accumulation: whole gradients between micro-batches
  double total() const { return states.total() + gathered + flats + held_gradients; }
};

// On one of `data_ranks` ranks along the data axis; with tensor ranks, of what one of those holds. Flats and buckets
// are packed as parallel/ packs them, but for padding.
MemoryLedger memory_ledger(const spec::RunPlan& plan, int64_t data_ranks);

// Elements that a rank of `data_ranks` sends a step to reduce gradients and to gather parameters, collectives at their
// least (comm/process_group.h). With P parameters and p ranks, times (p - 1) / p: 2P in stages 0 to 2; in stage 3 at
// most 3P, for each micro-batch P of forward and up to P of backward. The head is kept from forward to backward and the
// embedding's backward reads no parameter: what no part shares is not gathered for backward there.
double elements_sent(const spec::RunPlan& plan, int64_t data_ranks);

}  // namespace lockstep::cost
