// Into how many micro-batches to cut a batch: more of them make the pipeline's bubble smaller and pay the constant part
// of a micro-batch's time more often.
#pragma once

#include <cstdint>

namespace lockstep::cost {

// A stage's forward on b rows takes alpha + beta b, its backward twice that.
struct MicrobatchCost {
  int stages = 1;
  int64_t rows = 1;  // of the whole batch
  double alpha_s = 0;
  double beta_s_per_row = 0;
};

// A step of GPipe or 1F1B with equal stages and M equal micro-batches: 3 (M + K - 1) (alpha + beta N / M) seconds.
double pipeline_step_s(const MicrobatchCost& cost, int64_t microbatches);

// M* = sqrt((K-1) beta N / alpha), where that is least over real M.
//   throws   InvalidArgument: no stage, no row, a time that is not positive
//   source   Huang et al. 2019 (GPipe) gives the bubble; the minimum is by differentiation
double best_microbatches_estimate(const MicrobatchCost& cost);

// The best whole numbers in 1..rows: of all, and of those that divide the rows, so that micro-batches are equal. The
// step's time falls before M* and rises after it, so the search goes from M* to the nearest on either side.
struct BestMicrobatches {
  int64_t microbatches = 1;
  int64_t dividing = 1;
};
BestMicrobatches best_microbatches(const MicrobatchCost& cost);

}  // namespace lockstep::cost
