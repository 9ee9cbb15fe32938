// A RunPlan is everything a run is, written by people and read by every part of the program. Keys of the configuration
// carry the names of the members here, by section; what each means stands in the list of fields.h, from which the
// parser, the printer and the help are made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/mesh/mesh.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec {

enum class DataFormat { bytes, tokens_u16, tokens_u32, synthetic };
enum class Precision { fp32, fp64, bf16, fp16 };
enum class GradientDtype { fp32, model };
enum class OptimizerKind { adamw, sgd };
enum class Decay { none, linear, cosine };
enum class Reduction { fast, fixed_tree };
enum class Recompute { none, full, sqrt, selective, stage };
enum class Gather { layer, stage };
enum class GradientReduction { deferred, immediate };
enum class DeviceChoice { cpu, cuda, automatic };  // automatic: "auto" in the configuration

struct DataSpec {
  std::vector<std::string> path;          // files or folders, relative to the working directory; synthetic: empty
  DataFormat format = DataFormat::bytes;  // synthetic: random tokens that depend on the seed and their position alone
  double validation_fraction = 0.05;      // of the corpus, its end; in [0, 1)
};

struct TrainSpec {
  int64_t steps = 200;                    // optimizer steps
  int64_t global_batch = 16;              // sequences a step, whatever the layout
  int64_t microbatch = 2;                 // sequences a forward pass
  int64_t seed = 1;                       // of initial values, sample order and dropout
  Precision precision = Precision::fp32;  // of weights and activations; bf16 and fp16 train fp32 master weights
  GradientDtype gradient_dtype = GradientDtype::fp32;  // of gradients under bf16 and fp16; model: their own type
  OptimizerKind optimizer = OptimizerKind::adamw;
  double lr = 1e-3;                           // the peak
  std::array<double, 2> betas = {0.9, 0.95};  // AdamW: decay of the first and second moment
  double eps = 1e-8;                          // AdamW
  double momentum = 0.9;                      // SGD; 0: none
  double weight_decay = 0.1;                  // decoupled with AdamW; on matrices only
  double clip_norm = 1.0;                     // the global gradient norm is held below this; 0: no clipping
  int64_t warmup_steps = 0;                   // lr rises linearly over these
  Decay decay = Decay::cosine;                // from lr to min_lr over the steps after the warm-up
  double min_lr = 0;
};

struct ParallelSpec {
  int64_t data = 0;                // data-parallel ranks; 0: those that the other axes leave
  int64_t tensor = 1;              // ranks that share the weights of every layer
  bool sequence_parallel = false;  // tensor ranks split the sequence where they would hold the same activations
  std::map<std::string, std::string> rules;  // logical dim -> "tensor" or "none", over the defaults of placement.h
  int64_t pipeline = 1;                      // ranks that hold consecutive parts of the model
  std::string schedule = "1f1b";             // what a pipeline rank does when: a name of schedule/generators.h, a .csv
  int64_t chunks = 1;                        // stages per pipeline rank
  std::string stages;                        // where the model is cut (stages.h); empty: balanced, "measured"
  mesh::Order order = mesh::kAxes;           // which axis varies fastest over the ranks
  int64_t zero = 0;               // shards over data ranks: 1 optimizer state, 2 and gradients, 3 and parameters
  int64_t zero_group = 0;         // data ranks that share one copy of what is sharded; 0: all of them
  Gather gather = Gather::layer;  // zero = 3: a layer's parameters are whole while it is used; stage: during a step
  GradientReduction gradient_reduction = GradientReduction::deferred;  // zero = 2, 3: after the last micro-batch;
                                                                       // immediate: after each, only shards add up
  Reduction reduction = Reduction::fast;  // fixed_tree: bit-identical weights for 1, 2, 4, ... ranks
  double bucket_mb = 25;                  // gradients are reduced in buckets of about so many MiB
  bool overlap = true;                    // reduce while backward goes on; off: after it
  Recompute recompute = Recompute::none;  // what backward computes again instead of keeping it (recompute.h)
};

struct RunSpec {
  DeviceChoice device = DeviceChoice::cpu;
  std::string directory = "runs/default";  // metrics, trace, weights and the configuration of the run
  double deadline_s = 600;                 // longest wait for another rank
  int64_t validate_every = 100;            // steps; 0: never
  int64_t validation_batches = 20;         // global batches a validation looks at; 0: all
  int64_t trace_steps = 20;                // the last steps kept in trace.json
  bool log_all_ranks = false;              // every rank's lines, not rank 0's alone
};

struct RunPlan {
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  ParallelSpec parallel;
  RunSpec run;
};

// bf16 or fp16: weights have fp32 masters.
constexpr bool is_low(Precision precision) {
  return precision == Precision::bf16 || precision == Precision::fp16;
}

// The ranks of the plan on their axes, when there are `world_size` of them: parallel.data = 0 takes what is left.
// throws InvalidArgument when the axes do not multiply to world_size
mesh::Mesh make_mesh(const ParallelSpec& parallel, int world_size);

// Every rule that the plan breaks when run on `world_size` ranks, the model's among them; see also `refuse`.
std::vector<Problem> validate(const RunPlan& plan, int world_size);

// Throws InvalidArgument with all of the problems on one line, "; " between them; does nothing when there are none.
void refuse(const std::vector<Problem>& problems);

}  // namespace lockstep::spec
