#include "lockstep/spec/plan.h"

#include <bit>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/names.h"
#include "lockstep/spec/placement.h"
#include "lockstep/spec/rules.h"
#include "lockstep/spec/stages.h"

namespace lockstep::spec {

namespace {

constexpr int64_t kMaxCount =
    int64_t{1} << 40;  // of steps and sequences: their products with a sequence stay in 64 bits

void check_data(const RunPlan& plan, Rules& rules) {
  const DataSpec& data = plan.data;
  const std::string format = text('"', name(data.format), '"');
  const bool is_synthetic = data.format == DataFormat::synthetic;
  if (is_synthetic && !data.path.empty()) {
    rules.broken("data.path", join(data.path), "synthetic data is made, not read: leave the path empty", "[]");
  }
  if (!is_synthetic && data.path.empty()) {
    rules.broken("data.path", "[]", text("data.format = ", format, " needs a file or folder to read"));
  }
  if (data.format == DataFormat::bytes && plan.model.vocab < 256) {
    rules.broken("model.vocab", plan.model.vocab, text("data.format = ", format, " has tokens from 0 to 255"), "256");
  }
  const bool fraction = rules.fraction("data.validation_fraction", data.validation_fraction);
  if (fraction && data.validation_fraction == 0 && plan.run.validate_every > 0) {
    rules.broken("run.validate_every", plan.run.validate_every,
                 "data.validation_fraction = 0 leaves nothing to validate on", "0");
  }
}

void check_train(const TrainSpec& train, Rules& rules) {
  const bool steps = rules.within("train.steps", train.steps, 1, kMaxCount);
  const bool global_batch = rules.within("train.global_batch", train.global_batch, 1, int64_t{1} << 24);
  const bool microbatch = rules.at_least("train.microbatch", train.microbatch, 1);
  if (global_batch && microbatch) {
    rules.divides("train.microbatch", train.microbatch, "train.global_batch", train.global_batch);
  }
  rules.at_least("train.seed", train.seed, 0);
  const bool lr = rules.positive("train.lr", train.lr);
  rules.fraction("train.betas[0]", train.betas[0]);
  rules.fraction("train.betas[1]", train.betas[1]);
  rules.positive("train.eps", train.eps);
  rules.fraction("train.momentum", train.momentum);
  rules.not_negative("train.weight_decay", train.weight_decay);
  rules.not_negative("train.clip_norm", train.clip_norm);
  if (steps) rules.within("train.warmup_steps", train.warmup_steps, 0, train.steps);
  const bool min_lr = rules.not_negative("train.min_lr", train.min_lr);
  if (lr && min_lr && train.min_lr > train.lr) {
    rules.broken("train.min_lr", train.min_lr, text("must not be above train.lr = ", train.lr), text(train.lr));
  }
}

// The micro-batches on `data` ranks; values of the plan that this reads are sound.
void check_dealing(const RunPlan& plan, int64_t data, Rules& rules) {
  const TrainSpec& train = plan.train;
  const auto sizes = [&](const auto& works) {
    return nearest_values(train.microbatch, 1, train.global_batch, [&](int64_t microbatch) {
      return train.global_batch % microbatch == 0 && works(train.global_batch / microbatch);
    });
  };
  const int64_t count = num_microbatches(train);
  if (count < data) {
    rules.broken("train.microbatch", train.microbatch,
                 text("makes ", count, " micro-batches of train.global_batch = ", train.global_batch,
                      ", fewer than the ", data, " data ranks"),
                 sizes([&](int64_t candidate) { return candidate >= data; }));
  } else if (plan.parallel.reduction == Reduction::fixed_tree && plan.parallel.sequence_parallel) {
    rules.broken(
        "parallel.reduction", "\"fixed_tree\"",
        "orders additions over data ranks; parallel.sequence_parallel adds gradients over tensor ranks among them",
        "\"fast\", or parallel.sequence_parallel = false");
  } else if (plan.parallel.reduction == Reduction::fixed_tree && !fits_fixed_tree(count, data)) {
    const std::string ranks =
        nearest_values(data, 1, count, [&](int64_t candidate) { return fits_fixed_tree(count, candidate); });
    const std::string microbatches = sizes([&](int64_t candidate) { return fits_fixed_tree(candidate, data); });
    rules.broken("parallel.reduction", "\"fixed_tree\"",
                 text("the runs of ", count, " micro-batches on ", data,
                      " data ranks must be whole subtrees of the tree over micro-batches"),
                 text("parallel.data = ", ranks, microbatches.empty() ? "" : ", or train.microbatch = ", microbatches));
  }
}

// The ranks are dealt to the axes without a rest.
bool check_axes(const ParallelSpec& parallel, int64_t world_size, Rules& rules) {
  constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();
  const bool data = rules.within("parallel.data", parallel.data, 0, kMaxRanks);
  const bool tensor = rules.within("parallel.tensor", parallel.tensor, 1, kMaxRanks);
  const bool pipeline = rules.within("parallel.pipeline", parallel.pipeline, 1, kMaxRanks);
  if (!data || !tensor || !pipeline) return false;
  if (!rules.divides("parallel.tensor", parallel.tensor, "the number of ranks", world_size)) return false;
  const std::string after_tensor = parallel.tensor == 1 ? "" : " / parallel.tensor";
  if (!rules.divides("parallel.pipeline", parallel.pipeline, "the number of ranks" + after_tensor,
                     world_size / parallel.tensor)) {
    return false;
  }
  const int64_t left = world_size / parallel.tensor / parallel.pipeline;
  if (parallel.data == 0 || parallel.data == left) return true;
  const std::string divisors = after_tensor + (parallel.pipeline == 1 ? "" : " / parallel.pipeline");
  const std::string others = divisors.empty() ? "" : text(divisors, " = ", left);
  rules.broken("parallel.data", parallel.data,
               text("must be the number of ranks, which is ", world_size, others, ", or 0"), text(left));
  return false;
}

// What is sharded over `data` ranks.
void check_zero(const RunPlan& plan, int64_t data, Rules& rules) {
  const ParallelSpec& parallel = plan.parallel;
  const int64_t group = parallel.zero_group;
  if (!rules.within("parallel.zero", parallel.zero, 0, 3)) return;
  if (rules.within("parallel.zero_group", group, 0, std::numeric_limits<int>::max()) && group != 0) {
    if (parallel.zero == 0) {
      rules.broken("parallel.zero_group", group, "parallel.zero = 0 shards nothing", "0");
    } else if (data % group != 0) {
      rules.broken("parallel.zero_group", group, text("must divide the ", data, " data ranks, or be 0 for all of them"),
                   nearest_values(group, 1, data, [&](int64_t candidate) { return data % candidate == 0; }));
    }
  }
  if (parallel.gather == Gather::stage && parallel.zero != 3) {
    rules.broken("parallel.gather", "\"stage\"", text("parallel.zero = ", parallel.zero, " gathers no parameters"),
                 "\"layer\", or parallel.zero = 3");
  }
  if (parallel.gradient_reduction == GradientReduction::immediate && parallel.zero < 2) {
    rules.broken("parallel.gradient_reduction", "\"immediate\"",
                 text("parallel.zero = ", parallel.zero, " keeps whole gradients between micro-batches anyway"),
                 "\"deferred\", or parallel.zero = 2");
  }
  if (parallel.reduction != Reduction::fixed_tree || parallel.zero == 0) return;
  if (parallel.gradient_reduction == GradientReduction::immediate) {
    rules.broken("parallel.gradient_reduction", "\"immediate\"",
                 "parallel.reduction = \"fixed_tree\" adds a rank's micro-batches before those of other ranks",
                 "\"deferred\"");
  }
  const auto is_power = [](int64_t candidate) { return std::has_single_bit(static_cast<uint64_t>(candidate)); };
  if (group > 0 && group < data && data % group == 0 && !is_power(group)) {
    rules.broken("parallel.zero_group", group,
                 "parallel.reduction = \"fixed_tree\" adds over groups that are subtrees: a power of two of ranks",
                 nearest_values(group, 1, data, [&](int64_t candidate) {
                   return data % candidate == 0 && (is_power(candidate) || candidate == data);
                 }));
  }
}

void check_run(const RunSpec& run, Rules& rules) {
  if (run.directory.empty()) rules.broken("run.directory", "\"\"", "must name a folder", "\"runs/default\"");
  rules.positive("run.deadline_s", run.deadline_s);
  rules.within("run.validate_every", run.validate_every, 0, kMaxCount);
  rules.within("run.validation_batches", run.validation_batches, 0, kMaxCount);
  rules.within("run.trace_steps", run.trace_steps, 0, kMaxCount);
}

}  // namespace

mesh::Mesh make_mesh(const ParallelSpec& parallel, int world_size) {
  LOCKSTEP_CHECK(world_size >= 1, "a world of ", world_size);
  Rules rules;
  check_axes(parallel, world_size, rules);
  refuse(rules.take());
  mesh::MeshOptions options;
  options.sizes[mesh::Axis::tensor] = static_cast<int>(parallel.tensor);
  options.sizes[mesh::Axis::pipeline] = static_cast<int>(parallel.pipeline);
  options.sizes[mesh::Axis::data] = world_size / static_cast<int>(parallel.tensor * parallel.pipeline);
  options.order = parallel.order;
  return mesh::Mesh(options);
}

std::vector<Problem> validate(const RunPlan& plan, int world_size) {
  LOCKSTEP_CHECK(world_size >= 1, "a world of ", world_size);
  Rules rules;
  rules.add(validate(plan.model));
  check_data(plan, rules);
  check_train(plan.train, rules);
  const bool axes = check_axes(plan.parallel, world_size, rules);
  if (plan.parallel.tensor >= 1) rules.add(validate_placement(plan));
  if (plan.parallel.reduction == Reduction::fixed_tree && is_low(plan.train.precision) &&
      plan.train.gradient_dtype == GradientDtype::model) {
    rules.broken(
        "train.gradient_dtype", "\"model\"",
        "parallel.reduction = \"fixed_tree\" adds in fp32: sums rounded to the weights' type depend on the ranks",
        "\"fp32\"");
  }
  rules.positive("parallel.bucket_mb", plan.parallel.bucket_mb);
  const int64_t data_ranks = axes ? world_size / plan.parallel.tensor / plan.parallel.pipeline : world_size;
  check_zero(plan, data_ranks, rules);
  rules.add(validate_pipeline(plan, data_ranks));
  check_run(plan.run, rules);
  const TrainSpec& train = plan.train;
  const bool whole = train.microbatch >= 1 && train.global_batch >= 1 && train.global_batch % train.microbatch == 0;
  if (whole && axes) check_dealing(plan, data_ranks, rules);
  return rules.take();
}

void refuse(const std::vector<Problem>& problems) {
  if (problems.empty()) return;
  std::vector<std::string> lines;
  for (const Problem& problem : problems) lines.push_back(problem.message());
  throw InvalidArgument(join(lines, "; "));
}

}  // namespace lockstep::spec
