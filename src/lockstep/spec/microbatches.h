// How a global batch is cut into micro-batches and dealt to data-parallel ranks: in contiguous runs, the first ranks
// one more when they do not divide. Micro-batch m holds the sequences [m * microbatch, (m + 1) * microbatch) of the
// global batch.
//
//   5 micro-batches on 2 ranks:   rank 0: 0 1 2   rank 1: 3 4
#pragma once

#include <cstdint>

#include "lockstep/mesh/placement.h"
#include "lockstep/spec/plan.h"

namespace lockstep::spec {

// Of a step, over all ranks; global_batch is a multiple of microbatch.
int64_t num_microbatches(const TrainSpec& train);

// The global indices of the micro-batches of one rank along the data axis.
mesh::Range microbatches_of_rank(int64_t num_microbatches, mesh::Piece data_rank);

// Whether gradients can be added in the one order that reduction = "fixed_tree" means: pairwise over the global index
// of the micro-batch, from 0 to the next power of two, first within each rank and then, pairwise, over the ranks. Every
// rank must hold a whole subtree, and so must every node of the tree over ranks.
bool fits_fixed_tree(int64_t num_microbatches, int64_t data_ranks);

}  // namespace lockstep::spec
