// What a model's parts take by the size of the micro-batch, as measured on one rank, and so what a pipeline stage made
// of them takes: a micro-batch of b sequences takes alpha + beta b.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/cost/linear_time.h"
#include "lockstep/cost/microbatches.h"
#include "lockstep/schedule/table.h"
#include "lockstep/spec/stages.h"

namespace lockstep::cost {

// Of a stage or a part, by the kinds of a schedule's actions (schedule/table.h); seconds.
struct ActionTimes {
  double forward_s = 0, backward_s = 0, input_grad_s = 0, weight_grad_s = 0;  // of one micro-batch
  double optimizer_s = 0;                                                     // of one update
  // Of an action on a micro-batch; 0 for one that computes nothing.
  double of(schedule::Action::Kind kind) const;
};

struct PartTimes {
  LinearTime forward, backward, input_grad, weight_grad;
  double optimizer_s = 0;
  ActionTimes at(int64_t samples) const;
};

// Of one micro-batch size each; equally many actions' times as sizes.
PartTimes fit_part_times(std::span<const int64_t> samples, std::span<const ActionTimes> measured);

struct ModelTimes {
  PartTimes embedding;
  PartTimes block;  // one layer
  PartTimes head;   // with the final norm and the loss
};

// By part, what it takes of a step: of the table's actions on a micro-batch those on one stage, as many of each kind as
// stages have in the mean, and one update. For spec::cut_into_stages.
spec::PartCosts step_costs(const ActionTimes& embedding, const ActionTimes& block, const ActionTimes& head,
                           const schedule::Table& table);

ActionTimes stage_times(const ModelTimes& times, const spec::Stage& stage, int64_t samples);

// For best_microbatches: the model in `stages` equal stages, a step of `rows` sequences. alpha may be 0.
MicrobatchCost microbatch_cost(const ModelTimes& times, int64_t layers, int stages, int64_t rows);

}  // namespace lockstep::cost
