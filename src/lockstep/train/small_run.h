// For tests of the trainer: a plan that takes milliseconds, and its runs on ranks that are threads.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/train/plain_loop.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

inline spec::RunPlan small_plan() {
  spec::RunPlan plan;
  plan.model.layers = 2;
  plan.model.hidden = 16;
  plan.model.heads = plan.model.kv_heads = 2;
  plan.model.ffn_hidden = 32;
  plan.model.vocab = 32;
  plan.model.sequence = 8;
  plan.data.format = spec::DataFormat::synthetic;
  plan.train.steps = 4;
  plan.train.global_batch = 8;
  plan.train.microbatch = 1;
  plan.train.precision = spec::Precision::fp64;
  plan.train.lr = 1e-2;
  return plan;
}

// Bit-equality is claimed for one intra-op thread.
inline RunRecord reference_of(const spec::RunPlan& plan) {
  at::set_num_threads(1);
  return plain_loop(plan);
}

struct Outcome {
  std::vector<StepReport> reports;
  RunRecord record;
};

// Runs the plan on so many ranks and returns every rank's outcome.
inline std::vector<Outcome> run(const spec::RunPlan& plan, int ranks,
                                const std::function<TrainerOptions(int rank)>& options_of = nullptr) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    Outcome& mine = outcomes[static_cast<size_t>(world.rank())];
    TrainerOptions options = options_of ? options_of(world.rank()) : TrainerOptions{};
    options.record = &mine.record;
    Trainer trainer(plan, world, options);
    for (int64_t step = 0; step < plan.train.steps; ++step) mine.reports.push_back(trainer.step());
    trainer.record_end(mine.record);
  });
  return outcomes;
}

// Which steps have a value that is not a number, in one activation of the first micro-batch's second layer, and how
// late it comes.
struct Poison {
  int64_t first_step = 0, last_step = std::numeric_limits<int64_t>::max();
  std::chrono::milliseconds delay{0};
};

class PoisonedAttention : public nn::AttentionSeam {
 public:
  PoisonedAttention(nn::AttentionSeam& inner, const Poison& poison) : inner_(inner), poison_(poison) {}
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const nn::Site& site) override {
    const at::Tensor out = inner_.attend(q, k, v, site);
    const bool now = site.microbatch.step >= poison_.first_step && site.microbatch.step <= poison_.last_step;
    if (!now || site.layer != 1 || site.microbatch.index != 0) return out;
    std::this_thread::sleep_for(poison_.delay);
    return out * std::numeric_limits<double>::quiet_NaN();
  }
  at::Tensor positions(int64_t sequence, at::Device device) override { return inner_.positions(sequence, device); }

 private:
  nn::AttentionSeam& inner_;
  Poison poison_;
};

struct PoisonedSeams {
  PoisonedSeams(uint64_t seed, const Poison& poison) : local(seed), attention(local.seams().attention, poison) {}
  nn::LocalSeams local;
  PoisonedAttention attention;
  nn::Seams seams{local.seams().linear, local.seams().loss, attention, local.seams().dropout};
};

}  // namespace lockstep::train
