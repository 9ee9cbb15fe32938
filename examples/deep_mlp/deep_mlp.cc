// One deep network, twelve layers of the same width, cut in three ways over the ranks that were started together: by
// the batch, by the width of each layer, by the depth. Prints what each costs, and how far it is from one process.
//   lockstep launch --ranks 4 -- deep_mlp [WIDTH]        1, 2 or 4 ranks
// WIDTH is 4096 unless said, for which each rank takes 5 GB: it also trains the whole network in fp64, to compare.
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/data/data_parallel.h"
#include "lockstep/parallel/pipeline/pipeline_schedule.h"
#include "lockstep/parallel/tensor/modules.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/trace/recorder.h"

using torch::Tensor;

constexpr int64_t kLayers = 12, kBatch = 128, kMicrobatches = 8;
constexpr int64_t kStateBytes = 16;  // of a parameter in mixed precision: 2 + 2, and 4 + 4 + 4 of the optimizer's

// Layers `first` to `last` - 1, with the same initial values for everybody who asks for the same ones.
torch::nn::Sequential make_layers(int64_t width, int64_t first, int64_t last) {
  torch::nn::Sequential layers;
  for (int64_t layer = first; layer < last; ++layer) {
    torch::manual_seed(static_cast<uint64_t>(100 + layer));
    layers->push_back(torch::nn::Linear(width, width));
    layers->push_back(torch::nn::GELU());
  }
  layers->to(torch::kDouble);
  return layers;
}

// Even layers are cut by their outputs, odd ones by their inputs: two layers need one sum over ranks.
struct SlicedLayers : torch::nn::Module {
  SlicedLayers(int64_t width, lockstep::ProcessGroup& world) {
    for (int64_t layer = 0; layer < kLayers; layer += 2) {
      torch::manual_seed(static_cast<uint64_t>(100 + layer));
      columns.push_back(register_module("columns" + std::to_string(layer),
                                        lockstep::parallel::ColumnParallelLinear(width, width, world)));
      torch::manual_seed(static_cast<uint64_t>(101 + layer));
      rows.push_back(
          register_module("rows" + std::to_string(layer), lockstep::parallel::RowParallelLinear(width, width, world)));
    }
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < columns.size(); ++i) x = torch::gelu(rows[i]->forward(torch::gelu(columns[i]->forward(x))));
    return x;
  }
  std::vector<lockstep::parallel::ColumnParallelLinear> columns;
  std::vector<lockstep::parallel::RowParallelLinear> rows;
};

// This rank's part of the gradients of one process: of layers cut as SlicedLayers cuts them.
std::vector<Tensor> slices(const std::vector<Tensor>& whole, const lockstep::ProcessGroup& world) {
  std::vector<Tensor> own;
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool by_outputs = i % 4 < 2, is_weight = i % 2 == 0;  // weight and bias of each layer in turn
    const int64_t dim = by_outputs ? 0 : 1;
    own.push_back(by_outputs || is_weight ? whole[i].tensor_split(world.size(), dim).at(world.rank()) : whole[i]);
  }
  return own;
}

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

// What this rank sends in the calls of a step, each at the least that its operation needs.
struct Sent {
  double bytes = 0;
  int64_t calls = 0;
};
Sent sent_in(const std::vector<lockstep::trace::Event>& events, double ranks) {
  Sent sent;
  for (const lockstep::trace::Event& event : events) {
    if (event.track != lockstep::trace::Track::communication) continue;
    const double share = event.name().starts_with("all_reduce")   ? 2 * (ranks - 1) / ranks
                         : event.name().starts_with("all_gather") ? ranks - 1  // its bytes are those of one rank
                         : event.name().starts_with("send")       ? 1
                                                                  : 0;  // a receive
    sent.bytes += share * static_cast<double>(event.bytes);
    sent.calls += share > 0;
  }
  return sent;
}

// One process, and what the ways to cut are compared with.
struct Expected {
  double loss;
  std::vector<Tensor> gradients;
};

// Takes two steps and shows the second: in the first, ranks also tell each other shapes.
//   step    leaves gradients in the module, and returns this rank's share of the loss: ranks' shares add up to it
void show(const char* name, torch::nn::Module& module, const Expected& expected, lockstep::ProcessGroup& world,
          const std::function<Tensor()>& step) {
  step();
  module.zero_grad();
  const double start_s = lockstep::now_s();
  Tensor loss = step().detach().reshape({1});
  const Sent sent = sent_in(world.recorder()->events(start_s), world.size());
  lockstep::all_reduce(loss, world, lockstep::Reduction::sum);

  int64_t parameters = 0;
  double worst = std::abs(loss.item<double>() - expected.loss) / expected.loss;
  const std::vector<Tensor> gradients = gradients_of(module);
  for (size_t i = 0; i < gradients.size(); ++i) {
    parameters += gradients[i].numel();
    const Tensor& right = expected.gradients.at(i);
    worst = std::max(worst, ((gradients[i] - right).abs().max() / right.abs().max()).item<double>());
  }
  // Of the rank that has most.
  Tensor most =
      torch::tensor({static_cast<double>(parameters * kStateBytes), sent.bytes, static_cast<double>(sent.calls), worst},
                    torch::kDouble);
  lockstep::all_reduce(most, world, lockstep::Reduction::max);
  if (world.rank() != 0) return;
  std::printf("%-9s %14.0f %16.0f %7.0f %12.1e\n", name, most[0].item<double>(), most[1].item<double>(),
              most[2].item<double>(), most[3].item<double>());
}

struct Batch {
  Tensor x, y;
};

void cut_by_batch(torch::nn::Sequential& layers, const Batch& batch, const Expected& expected,
                  lockstep::ProcessGroup& world) {
  const int64_t ranks = world.size(), rank = world.rank();
  lockstep::parallel::DataParallel data_parallel(*layers, world);
  show("batch", *layers, expected, world, [&] {
    const Tensor loss = torch::mse_loss(layers->forward(batch.x.chunk(ranks)[rank]), batch.y.chunk(ranks)[rank]);
    loss.backward();
    return loss / ranks;
  });
}

void cut_by_width(const Batch& batch, const Expected& expected, lockstep::ProcessGroup& world) {
  SlicedLayers layers(batch.x.size(1), world);
  show("width", layers, {expected.loss, slices(expected.gradients, world)}, world, [&] {
    const Tensor loss = torch::mse_loss(layers.forward(batch.x), batch.y);
    loss.backward();
    return loss / world.size();
  });
}

void cut_by_depth(const Batch& batch, const Expected& expected, lockstep::ProcessGroup& world) {
  const int64_t first = kLayers * world.rank() / world.size(), last = kLayers * (world.rank() + 1) / world.size();
  torch::nn::Sequential layers = make_layers(batch.x.size(1), first, last);
  lockstep::parallel::PipelineSchedule pipeline(
      lockstep::schedule::make_table("1f1b", {.ranks = world.size(), .microbatches = kMicrobatches}),
      {lockstep::parallel::stage_of(layers)}, world);
  const auto begin = expected.gradients.begin();  // a weight and a bias for each layer
  show("depth", *layers, {expected.loss, {begin + 2 * first, begin + 2 * last}}, world, [&] {
    const auto mse = [](const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); };
    const Tensor loss = pipeline.step(batch.x, batch.y, mse).loss;
    return loss.defined() ? loss : torch::zeros({}, torch::kDouble);  // only the last stage has it
  });
}

// 0 when the argument is no number.
int64_t width_of(std::string_view argument) {
  int64_t width = 0;
  const char* end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, width);
  return error == std::errc() && stop == end ? width : 0;
}

int main(int argc, char** argv) {
  const auto world = lockstep::init();
  const int64_t width = argc > 1 ? width_of(argv[1]) : 4096;
  const bool ranks_fit = kLayers % world->size() == 0 && kBatch % world->size() == 0;
  if (!ranks_fit || width < world->size()) {
    if (!ranks_fit && world->rank() == 0) std::fprintf(stderr, "ranks = %d: must be 1, 2 or 4\n", world->size());
    if (ranks_fit && world->rank() == 0)
      std::fprintf(stderr, "WIDTH = %s: must be a number of at least %d\n", argv[1], world->size());
    lockstep::barrier(*world);  // the first to end ends the others, who may still have to say why
    return 2;
  }
  lockstep::trace::Recorder recorder(world->rank());
  world->set_recorder(&recorder);
  torch::manual_seed(1);
  const Batch batch{torch::randn({kBatch, width}, torch::kDouble), torch::randn({kBatch, width}, torch::kDouble)};

  torch::nn::Sequential whole = make_layers(width, 0, kLayers);
  const Tensor loss = torch::mse_loss(whole->forward(batch.x), batch.y);
  loss.backward();
  const Expected expected{loss.item<double>(), gradients_of(*whole)};
  whole->zero_grad();

  if (world->rank() == 0)
    std::printf("%-9s %14s %16s %7s %12s\n", "cut by", "state bytes", "bytes sent", "calls", "difference");
  cut_by_batch(whole, batch, expected, *world);
  whole = nullptr;
  cut_by_width(batch, expected, *world);
  cut_by_depth(batch, expected, *world);
  world->set_recorder(nullptr);
}
