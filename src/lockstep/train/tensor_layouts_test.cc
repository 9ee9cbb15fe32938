// Tensor and sequence parallelism against the plain loop, and faults that the comparison must see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <optional>

#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/distributed/memory.h"
#include "lockstep/optim/clip.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/spec/layout.h"
#include "lockstep/train/plain_loop.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {
namespace {

using at::Tensor;

// Sizes that tp2, tp3 and tp4 all can have, some of them unevenly: 13 tokens, 26 features, 7 positions.
spec::RunPlan gpt_plan() {
  spec::RunPlan plan;
  plan.model.layers = 2;
  plan.model.hidden = 24;
  plan.model.heads = plan.model.kv_heads = 12;
  plan.model.ffn_hidden = 26;
  plan.model.vocab = 13;
  plan.model.sequence = 7;
  plan.model.dropout = 0.1;
  plan.data.format = spec::DataFormat::synthetic;
  plan.train.steps = 5;
  plan.train.global_batch = 12;
  plan.train.microbatch = 2;
  plan.train.precision = spec::Precision::fp64;
  plan.train.lr = 1e-2;
  return plan;
}

spec::RunPlan llama_plan() {
  spec::RunPlan plan = gpt_plan();
  plan.model.kv_heads = 2;
  plan.model.heads = 4;
  plan.model.norm = spec::Norm::rmsnorm;
  plan.model.activation = spec::Activation::swiglu;
  plan.model.position = spec::Position::rope;
  plan.model.bias = false;
  plan.model.tie_embeddings = false;
  return plan;
}

using OnTrainer = std::function<void(int rank, TrainerOptions& options)>;

// Runs the plan's steps and returns every rank's record.
std::vector<RunRecord> run(const spec::RunPlan& plan, int ranks, const OnTrainer& change = nullptr) {
  std::vector<RunRecord> records(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(120)}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    RunRecord& mine = records[static_cast<size_t>(world.rank())];
    TrainerOptions options{.record = &mine};
    if (change) change(world.rank(), options);
    Trainer trainer(plan, world, options);
    for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
    trainer.record_end(mine);
  });
  return records;
}

double worst(const Comparison& c) {
  return std::max({c.max_rel_loss, c.max_rel_grad, c.rel_norm, c.max_rel_param, c.max_rel_state});
}

void expect_equals_plain_loop(const spec::RunPlan& base, const std::vector<std::string>& layouts) {
  at::set_num_threads(1);
  std::map<int64_t, RunRecord> references;
  for (const std::string& name : layouts) {
    const spec::Layout layout = spec::parse_layout(name);
    const spec::RunPlan plan = spec::apply(layout, base);
    if (!references.contains(plan.train.microbatch)) references[plan.train.microbatch] = plain_loop(plan);
    for (const RunRecord& record : run(plan, layout.world_size())) {
      const Comparison c = compare(references[plan.train.microbatch], record);
      EXPECT_LE(worst(c), 1e-10) << name << " " << c.worst_parameter;
    }
  }
}

const std::vector<std::string> kLayouts = {"tp2",    "tp4",        "dp2-tp2",    "tp2-sp",
                                           "tp4-sp", "dp2-tp2-sp", "dp3-tp2-sp", "dp2-tp2-sp-acc3"};

TEST(TensorLayouts, EqualThePlainLoopGpt) {
  expect_equals_plain_loop(gpt_plan(), kLayouts);
  expect_equals_plain_loop(gpt_plan(), {"tp3", "tp3-sp", "tp6"});
}

TEST(TensorLayouts, EqualThePlainLoopLlamaWithSharedKeyValueHeads) {
  expect_equals_plain_loop(llama_plan(), kLayouts);
}

TEST(TensorLayouts, OtherTyingAndSingleKeyValueHead) {
  spec::RunPlan plan = gpt_plan();
  plan.model.tie_embeddings = false;
  expect_equals_plain_loop(plan, {"tp2-sp"});
  plan = llama_plan();
  plan.model.tie_embeddings = true;
  plan.model.kv_heads = 1;
  plan.model.bias = true;
  expect_equals_plain_loop(plan, {"tp2", "tp4-sp"});
}

TEST(TensorLayouts, RulesLeaveWholeWhatTheyName) {
  for (const char* dim : {"vocab", "ffn", "heads"}) {
    spec::RunPlan plan = gpt_plan();
    plan.parallel.rules[dim] = "none";
    if (std::string(dim) == "heads") plan.parallel.rules["kv_heads"] = "none";
    expect_equals_plain_loop(plan, {"tp2", "dp2-tp2"});
  }
}

TEST(TensorLayouts, WithoutOverlapAndInAnotherOrderOfAxes) {
  spec::RunPlan plan = gpt_plan();
  plan.parallel.overlap = false;
  plan.parallel.order = mesh::parse_order("dp,tp,cp,ep,pp");
  expect_equals_plain_loop(plan, {"dp2-tp2", "dp2-tp2-sp"});
}

TEST(TensorLayouts, WithRecomputedLayers) {
  expect_equals_plain_loop(gpt_plan(), {"tp2-recompute_full", "tp2-sp-recompute_full", "tp2-sp-recompute_selective"});
}

// --- the same start
// ------------------------------------------------------------------------------------------------------

TEST(TensorLayouts, StartFromTheSameBits) {
  for (const auto& base : {gpt_plan(), llama_plan()}) {
    const auto whole = make_model(base, at::kCPU);
    for (const char* name : {"tp2", "tp4", "dp2-tp2-sp"}) {
      const spec::Layout layout = spec::parse_layout(name);
      comm::run_ranks(layout.world_size(), {}, [&](comm::ProcessGroup& world) {
        Trainer trainer(spec::apply(layout, base), world);
        const auto gathered = trainer.parameters_to_save();
        ASSERT_EQ(gathered.size(), world.rank() == 0 ? whole->parameter_list().size() : 0);
        for (size_t i = 0; i < gathered.size(); ++i) {
          const nn::Parameter& expected = whole->parameter_list()[i];
          EXPECT_EQ(gathered[i].spec.name, expected.spec.name);
          EXPECT_TRUE(at::equal(gathered[i].tensor, expected.tensor)) << name << " " << expected.spec.name;
        }
      });
    }
  }
}

TEST(TensorLayouts, WeightsAreLoadedBySlices) {
  for (spec::RunPlan plan : {gpt_plan(), llama_plan()}) {
    plan.train.seed = 2;
    const auto saved = make_model(plan, at::kCPU);
    const std::string folder = ::testing::TempDir() + "/weights_by_slices";
    checkpoint::save_weights(folder, plan.model, saved->parameter_list());
    plan.train.seed = 1;
    plan.model.weights = folder;
    plan.parallel.tensor = 4;
    comm::run_ranks(4, {}, [&](comm::ProcessGroup& world) {
      const auto gathered = Trainer(plan, world).parameters_to_save();
      for (size_t i = 0; i < gathered.size(); ++i) {
        EXPECT_TRUE(at::equal(gathered[i].tensor, saved->parameter_list()[i].tensor)) << gathered[i].spec.name;
      }
    });
    std::filesystem::remove_all(folder);
  }
}

TEST(WholeTensors, GatherIsTheInverseOfSharding) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    spec::RunPlan plan;
    plan.parallel.tensor = ranks;
    const mesh::Mesh mesh = spec::make_mesh(plan.parallel, ranks);
    comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
      for (int64_t size = 0; size <= 9; ++size) {
        for (const spec::ParameterSpec& parameter :
             {spec::ParameterSpec{.name = "rows", .shape = {size, 3}, .logical_dims = {"ffn", "embed"}},
              spec::ParameterSpec{.name = "columns", .shape = {2, size}, .logical_dims = {"embed", "ffn"}},
              spec::ParameterSpec{.name = "padded", .shape = {size, 3}, .logical_dims = {"vocab", "embed"}},
              spec::ParameterSpec{.name = "replicated", .shape = {size}, .logical_dims = {"embed"}}}) {
          const auto place = spec::place_on_rank(parameter, plan, mesh, world.rank());
          const Tensor whole = at::arange(parameter.count(), at::kDouble).view(parameter.shape) + 1;
          const Tensor slice = at::zeros(place.shape, at::kDouble);
          nn::without_padding(slice, place.region).copy_(nn::part_of(whole, place.region));
          const WholeTensors tensors(plan, mesh, {{parameter, slice, place.region}}, world, world.rank());
          EXPECT_TRUE(at::equal(tensors.gather(parameter.name, slice), whole))
              << parameter.name << " of " << size << " on " << ranks;
        }
      }
    });
  }
}

// GRAD-09: 17.69 when the replica counts twice.
TEST(TensorLayouts, GradientNormCountsReplicasOnce) {
  comm::run_ranks(2, {}, [](comm::ProcessGroup& group) {
    const bool first = group.rank() == 0;
    std::vector<Tensor> counted = {at::full({1}, first ? 3.0 : 4.0, at::kDouble)};
    counted.push_back(first ? at::full({1}, 12.0, at::kDouble) : Tensor());
    EXPECT_EQ(std::sqrt(optim::squared_norm_over_ranks(counted, group)), 13);
  });
}

// GRAD-21: masks by global place; of a sequence shard it is that part of the whole mask.
TEST(TensorLayouts, DropoutMasksAreThatPartOfTheWholeMask) {
  spec::RunPlan plan = gpt_plan();
  plan.parallel.sequence_parallel = true;
  const nn::Site site{.layer = 1, .microbatch = {.step = 3, .first_sample = 4}, .name = "ffn"};
  nn::LocalDropout local(static_cast<uint64_t>(plan.train.seed));
  const Tensor ones = at::ones({2, 7, 8}, at::kDouble), whole = local.dropout(ones, 0.5, site);
  for (const int ranks : {2, 3}) {
    std::vector<Tensor> masks(static_cast<size_t>(ranks));
    plan.parallel.tensor = ranks;
    comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& group) {
      parallel::TensorParallel tensor_parallel(plan, group);
      const mesh::Range own = tensor_parallel.group().positions();
      masks[static_cast<size_t>(group.rank())] =
          tensor_parallel.seams().dropout.dropout(ones.narrow(1, own.offset, own.size), 0.5, site);
    });
    EXPECT_TRUE(at::equal(at::cat(masks, 1), whole)) << ranks << " ranks";
    EXPECT_FALSE(at::equal(masks[0].narrow(1, 0, 2), masks[1].narrow(1, 0, 2)));
  }
  nn::Site elsewhere = site;
  elsewhere.microbatch.first_sample = 6;  // of another data rank
  EXPECT_FALSE(at::equal(local.dropout(ones, 0.5, elsewhere), whole));
}

// --- what is exchanged
// ---------------------------------------------------------------------------------------------------

// How often events whose names contain all of the words were recorded.
int64_t count(const std::vector<trace::Event>& events, const std::vector<std::string>& words) {
  return std::ranges::count_if(events, [&](const trace::Event& event) {
    return std::ranges::all_of(
        words, [&](const std::string& word) { return event.name().find(word) != std::string_view::npos; });
  });
}

TEST(TensorLayouts, ExchangeTwiceALayerForwardAndTwiceBackward) {
  for (const bool sequence_parallel : {false, true}) {
    spec::RunPlan plan = gpt_plan();
    plan.parallel.tensor = 2;
    plan.parallel.sequence_parallel = sequence_parallel;
    comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      trace::Recorder recorder(world.rank());
      Trainer trainer(plan, world, {.recorder = &recorder});
      trainer.step();
      const auto events = recorder.events();
      const int64_t microbatches = plan.train.global_batch / plan.train.microbatch;
      const int64_t twice = 2 * plan.model.layers * microbatches;
      const auto of = [&](const char* operation, const char* direction) {
        return count(events, {std::string(operation) + " ", direction, "layers."});
      };
      EXPECT_EQ(of("all_reduce", "forward"), sequence_parallel ? 0 : twice);
      EXPECT_EQ(of("all_reduce", "backward"), sequence_parallel ? 0 : twice);
      EXPECT_EQ(of("all_gather", "forward"), sequence_parallel ? twice : 0);
      EXPECT_EQ(of("reduce_scatter", "forward"), sequence_parallel ? twice : 0);
      EXPECT_EQ(of("reduce_scatter", "backward"), sequence_parallel ? twice : 0);
      // The gradient of each row layer, and once more the input of each column layer.
      EXPECT_EQ(of("all_gather", "backward"), sequence_parallel ? 2 * twice : 0);
      EXPECT_EQ(count(events, {"layers."}), sequence_parallel ? 5 * twice : 2 * twice);
      // Outside of the layers: the embedding, the head, and three numbers a token in two exchanges.
      EXPECT_EQ(count(events, {"forward embed.tokens"}), microbatches);
      EXPECT_EQ(count(events, {"forward max head"}), microbatches);
      EXPECT_EQ(count(events, {"forward sum head"}), microbatches);
      EXPECT_EQ(count(events, {"gradient norm"}), 1);
      world.set_recorder(nullptr);
    });
  }
}

// Bytes that the blocks keep for backward, over all ranks.
double kept_by_blocks(const std::string& layout) {
  const spec::RunPlan plan = spec::apply(spec::parse_layout(layout), gpt_plan());
  const int ranks = static_cast<int>(plan.parallel.tensor);
  int64_t kept = 0;
  comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    const auto list = spec::parameters(plan.model);
    const auto places = spec::place_on_rank(list, plan, spec::make_mesh(plan.parallel, ranks), world.rank());
    const nn::Transformer model(plan.model, nn::create_parameters(list, places, 1));
    parallel::TensorParallel tensor_parallel(plan, world);
    const nn::Context context{tensor_parallel.seams(), {}, {}};
    const Tensor in = model.embed(at::zeros({2, plan.model.sequence}, at::kLong), context);
    std::optional<MemorySince> bytes;  // of the process: rank 0 counts for all, while nobody computes
    barrier(world);
    if (world.rank() == 0) bytes.emplace();
    barrier(world);
    const Tensor out = model.blocks({0, plan.model.layers}, in, context);
    barrier(world);
    if (bytes) kept = bytes->now();
    barrier(world);
  });
  return static_cast<double>(kept);
}

// Together tensor ranks keep what one process keeps, if they split the sequence as well; gathered inputs are not kept.
TEST(TensorLayouts, ActivationsAreKeptOnceWithSequenceParallelism) {
  const double single = kept_by_blocks("single");
  for (const char* ranks : {"2", "3", "4"}) {
    const double tensor = kept_by_blocks(std::string("tp") + ranks) / single;
    const double sequence = kept_by_blocks(std::string("tp") + ranks + "-sp") / single;
    EXPECT_NEAR(sequence, 1, 1e-3) << ranks << " ranks";
    EXPECT_GT(tensor, 1.2) << ranks << " ranks";
    RecordProperty(std::string("tp") + ranks, std::to_string(tensor));
    RecordProperty(std::string("tp_sp") + ranks, std::to_string(sequence));
  }
}

// --- the comparison sees what is wrong
// -----------------------------------------------------------------------------------

// Every rank runs `change`; the record must differ from the plain loop, and name a parameter.
std::string named_by_fault(const spec::RunPlan& plan, int ranks, const OnTrainer& change) {
  at::set_num_threads(1);
  const RunRecord reference = plain_loop(plan);
  double largest = 0;
  std::string name;
  for (const RunRecord& record : run(plan, ranks, change)) {
    const Comparison c = compare(reference, record);
    if (worst(c) > largest) name = c.worst_parameter;
    largest = std::max(largest, worst(c));
  }
  EXPECT_GT(largest, 1e-6);
  EXPECT_NE(name, "");
  return name;
}

// Forward is right; what enters is not summed in backward, and what leaves is.
class SwappedLinear : public nn::LinearSeam {
 public:
  explicit SwappedLinear(comm::ProcessGroup& ranks) : group_(ranks) {}
  std::vector<Tensor> linears(const Tensor& x, std::span<const nn::Projection> projections, nn::Split split,
                              const nn::Site&) override {
    if (split == nn::Split::rows) {
      const Tensor sum = parallel::leave_split(at::linear(x, projections[0].weight), group_, "g");
      return {parallel::enter_split(sum, group_, "f") + projections[0].bias};  // summed in backward as well
    }
    std::vector<Tensor> outputs;  // nothing is summed in backward
    for (const nn::Projection& projection : projections) {
      outputs.push_back(at::linear(x, projection.weight, projection.bias));
    }
    return outputs;
  }

 private:
  parallel::TensorGroup group_;
};

// The bias before the sum: t times.
class BiasTimesRanks : public nn::LinearSeam {
 public:
  explicit BiasTimesRanks(comm::ProcessGroup& ranks) : group_(ranks) {}
  std::vector<Tensor> linears(const Tensor& x, std::span<const nn::Projection> projections, nn::Split split,
                              const nn::Site&) override {
    if (split == nn::Split::columns) return parallel::column_linears(x, projections, group_, "columns");
    return {parallel::leave_split(at::linear(x, projections[0].weight, projections[0].bias), group_, "rows")};
  }

 private:
  parallel::TensorGroup group_;
};

// The right seams but for one, for each rank; in the trainer's group along the tensor axis, which is the world here.
template <class Linear>
std::string named_by_linear_fault(spec::RunPlan plan) {
  plan.parallel.tensor = 2;
  plan.model.dropout = 0;
  at::set_num_threads(1);
  const RunRecord reference = plain_loop(plan);
  std::string name;
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    const int both[] = {0, 1};
    const auto group = world.split(both, "faulty");
    parallel::TensorParallel right(plan, *group);
    Linear wrong(*group);
    nn::Seams seams{wrong, right.seams().loss, right.seams().attention, right.seams().dropout};
    RunRecord record;
    Trainer trainer(plan, world, {.seams = &seams, .record = &record});
    for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
    trainer.record_end(record);
    const Comparison c = compare(reference, record);
    EXPECT_GT(c.max_rel_grad, 1e-6);
    if (world.rank() == 0) name = c.worst_parameter;
  });
  return name;
}

TEST(Faults, BackwardOfEnterAndLeaveExchanged) {
  EXPECT_NE(named_by_linear_fault<SwappedLinear>(gpt_plan()), "");
}

TEST(Faults, ARowBiasAddedByEveryRank) {
  spec::RunPlan plan = gpt_plan();
  plan.train.steps = 6;  // biases start at zero: the fault shows once they are not
  EXPECT_NE(named_by_linear_fault<BiasTimesRanks>(plan), "");
}

// Runs the plan with places that `spoil` has changed on each rank.
std::string named_by_place_fault(const spec::RunPlan& plan, int ranks,
                                 const std::function<void(const std::string& name, spec::ParameterPlace&)>& spoil) {
  std::vector<std::vector<spec::ParameterPlace>> places(static_cast<size_t>(ranks));
  const mesh::Mesh mesh = spec::make_mesh(plan.parallel, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& mine = places[static_cast<size_t>(rank)];
    for (const spec::ParameterSpec& parameter : spec::parameters(plan.model)) {
      if (!parameter.tied_to.empty()) continue;
      mine.push_back(spec::place_on_rank(parameter, plan, mesh, rank));
      spoil(parameter.name, mine.back());
    }
  }
  return named_by_fault(
      plan, ranks, [&](int rank, TrainerOptions& options) { options.places = &places[static_cast<size_t>(rank)]; });
}

TEST(Faults, ANormWhoseGradientIsNotSummedOverTheSequence) {
  spec::RunPlan plan = gpt_plan();
  plan.parallel.tensor = 2;
  plan.parallel.sequence_parallel = true;
  for (const char* fault : {"final_norm.weight", "layers.1.attention_norm.bias", "layers.0.ffn.down.bias"}) {
    plan.train.steps = 1;
    int rank = 0;
    EXPECT_EQ(named_by_place_fault(plan, 2,
                                   [&](const std::string& name, spec::ParameterPlace& place) {
                                     if (name == fault) place.gradient_ranks = {rank++};
                                   }),
              fault);
  }
}

TEST(Faults, AReplicaCountedTwiceInTheNorm) {
  spec::RunPlan plan = gpt_plan();
  plan.parallel.tensor = 2;
  named_by_place_fault(plan, 2, [](const std::string& name, spec::ParameterPlace& place) {
    if (name == "final_norm.weight") place.counted_in_norm = true;
  });
  plan = llama_plan();
  plan.parallel.tensor = 4;
  named_by_place_fault(plan, 4, [](const std::string& name, spec::ParameterPlace& place) {
    if (name == "layers.0.attention.key.weight") place.counted_in_norm = true;
  });
}

class RankKeyedDropout : public nn::DropoutSeam {
 public:
  explicit RankKeyedDropout(int rank) : local_(static_cast<uint64_t>(1000 + rank)) {}
  Tensor dropout(const Tensor& x_BSH, double p, const nn::Site& site) override {
    return local_.dropout(x_BSH, p, site);
  }

 private:
  nn::LocalDropout local_;
};

TEST(Faults, AMaskKeyedByRank) {
  spec::RunPlan plan = gpt_plan();
  plan.parallel.tensor = 2;
  at::set_num_threads(1);
  const RunRecord reference = plain_loop(plan);
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    const int both[] = {0, 1};
    const auto group = world.split(both, "faulty");
    parallel::TensorParallel right(plan, *group);
    RankKeyedDropout wrong(world.rank());
    nn::Seams seams{right.seams().linear, right.seams().loss, right.seams().attention, wrong};
    RunRecord record;
    Trainer trainer(plan, world, {.seams = &seams, .record = &record});
    for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
    trainer.record_end(record);
    const Comparison c = compare(reference, record);
    EXPECT_GT(c.max_rel_grad, 1e-6);
    EXPECT_NE(c.worst_parameter, "");
  });
}

}  // namespace
}  // namespace lockstep::train
