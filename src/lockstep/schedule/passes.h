// Passes add layers to a table of computing. Each takes a valid table and gives a valid one; their order is free but
// for add_sharding, which needs to see the reductions if there are to be any.
#pragma once

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

// A send after each action whose output another rank needs, and its receive on that rank. A receive stands where the
// rank is when the message leaves, if F takes 1, a whole B 2, and I, W and R 1 each. All lists are cut from one order
// in which a receive follows its send at once, so nothing deadlocks even when sends wait for their receives and
// channels hold nothing. A pair that may overlap stays a pair: its receives stand before it, its sends after it.
//   throws InvalidArgument for a table that has communication, or in which no rank can go on
Table add_communication(const Table& table);

// Before each backward or input gradient the stage's forward once more: only the stage's input is kept until then. It
// stands before the gradient's receive, so that it can run while the gradient is on its way.
Table add_recompute(const Table& table);

// At the end of each rank's list the reductions of its stages, in the order in which their gradients are complete, and
// the step. Reductions run beside computing and are waited for where they stand, so they stand last.
Table add_step(const Table& table);

// Parameters that are sharded (ZeRO-3): before every action the next `max_active` stages that the rank computes on are
// unsharded, and others resharded to make room; at the end of the list all are.
//   source   the rule of PyTorch's pipeline lowering, which prefetches 3
Table add_sharding(const Table& table, int max_active = 3);

}  // namespace lockstep::schedule
