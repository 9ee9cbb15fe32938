// A pipeline in one process: each stage is a module of the user's, on a device of its own and in a thread of its own.
// The forward pass goes in waves; backward is autograd's, along the graph that the waves made.
//
//   Pipe pipe({stage_of(first), stage_of(second)}, {.split_size = 1024});
//   loss(pipe.forward(batch), targets).backward();
//
//   wave 2:  submit(0) submit(1) submit(2)  receive(0) receive(1) receive(2)        micro-batches 2, 1, 0
//
// On several processes, and for a backward that is scheduled too, there is PipelineSchedule.
//   source   Huang et al. 2019 (GPipe); torchgpipe
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_stage.h"
#include "lockstep/parallel/pipeline/stage_workers.h"

namespace lockstep::parallel {

struct PipeOptions {
  // One of the two: rows of a micro-batch, the last having what is left; or how many micro-batches there are, their
  // rows differing by one at most.
  int64_t split_size = 0;
  int64_t microbatches = 0;
  std::function<void(const WorkerCall&)> on_call{};  // sees what is asked of the workers, in order
};

class Pipe {
 public:
  //   throws   InvalidArgument without stages, for a stage that cannot be called, and unless one of the options is set
  explicit Pipe(std::vector<PipelineStage> stages, PipeOptions options);

  // batch [N, ...]  ->  the stages applied one after the other, [N, ...] on the last stage's device.
  // Each row is computed as by the stages without a pipeline: the same bits where those are given the same
  // micro-batches (matrix products of other shapes round differently). Gradients are one partial sum per micro-batch,
  // added up. A stage that draws from torch's global generator (dropout) draws in no fixed order relative to other
  // stages.
  //   throws   what a stage throws, unchanged; the first of a wave, and only when the whole wave has been received, so
  //            that the pipe can go on with another batch. InvalidArgument for a batch that cannot be split
  at::Tensor forward(const at::Tensor& batch);

 private:
  std::vector<at::Tensor> split(const at::Tensor& batch) const;

  std::vector<PipelineStage> stages_;
  PipeOptions options_;
  StageWorkers workers_;
};

}  // namespace lockstep::parallel
