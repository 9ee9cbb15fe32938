// Pipelines of every kind against the plain loop, what they hold and record, and faults that the comparison must see.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/in_flight.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/spec/layout.h"
#include "lockstep/spec/placement.h"
#include "lockstep/spec/stages.h"
#include "lockstep/train/leaving_out.h"
#include "lockstep/train/small_run.h"

namespace lockstep::train {
namespace {

spec::RunPlan gpt_plan() {
  spec::RunPlan plan = small_plan();
  plan.model.layers = 6;
  plan.model.dropout = 0.1;
  plan.train.steps = 3;
  return plan;
}

spec::RunPlan llama_plan() {
  spec::RunPlan plan = gpt_plan();
  plan.model.norm = spec::Norm::rmsnorm;
  plan.model.activation = spec::Activation::swiglu;
  plan.model.position = spec::Position::rope;
  plan.model.bias = false;
  plan.model.tie_embeddings = false;
  return plan;
}

spec::RunPlan on(std::string_view layout, spec::RunPlan plan) {
  plan = spec::apply(spec::parse_layout(layout), plan);
  plan.parallel.bucket_mb = 0.02;
  return plan;
}

int ranks_of(std::string_view layout) {
  return spec::parse_layout(layout).world_size();
}

double worst(const Comparison& c) {
  return std::max({c.max_rel_loss, c.max_rel_grad, c.rel_norm, c.max_rel_param, c.max_rel_state});
}

void expect_equals_plain_loop(const spec::RunPlan& base, const std::vector<std::string>& layouts) {
  std::map<std::pair<int64_t, spec::Reduction>, RunRecord> references;
  for (const std::string& name : layouts) {
    const spec::RunPlan plan = on(name, base);
    const auto key = std::pair(plan.train.microbatch, plan.parallel.reduction);
    if (!references.contains(key)) references[key] = reference_of(plan);
    for (const Outcome& outcome : run(plan, ranks_of(name))) {
      const Comparison c = compare(references[key], outcome.record);
      EXPECT_LE(worst(c), 1e-10) << name << " " << c.worst_parameter;
    }
  }
}

// Every kind, with as many chunks as it takes.
std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const schedule::Generator& generator : schedule::generators()) {
    const std::string name(generator.name);
    const bool chunks = name == "interleaved" || name == "interleaved_zb" || name == "looped_bfs";
    names.push_back(text("pp2-", chunks ? "v2-" : "", name));
  }
  return names;
}

TEST(PipelineLayouts, EveryKindEqualsThePlainLoop) {
  expect_equals_plain_loop(gpt_plan(), kinds());
  expect_equals_plain_loop(llama_plan(), kinds());
}

TEST(PipelineLayouts, EveryKindWithShardedGradientsAndParameters) {
  for (const std::string& kind : kinds()) {
    for (const char* zero : {"-zero2", "-zero3"}) {
      std::string name = "dp2-" + kind;
      const size_t schedule = kind.rfind('-');
      name.insert(4 + schedule, zero);
      expect_equals_plain_loop(gpt_plan(), {name});
    }
  }
}

TEST(PipelineLayouts, ThreeDimensions) {
  const std::vector<std::string> names = {"dp2-tp2-pp2",        "tp2-sp-pp2-gpipe",     "dp2-tp2-sp-pp2-zero3",
                                          "dp3-pp2-zero2",      "pp4-recompute_stage",  "pp2-recompute_full",
                                          "dp2-pp3-zero1",      "tp2-pp2-v2-zb_v",      "pp2-recompute_selective",
                                          "dp2-pp2-zero3-acc2", "dp3-pp2-v2-looped_bfs"};
  expect_equals_plain_loop(gpt_plan(), names);
  expect_equals_plain_loop(llama_plan(), names);
}

// Schedules that add micro-batches in the same order have the same bits, which are those of the plain loop where the
// embedding and the head have a table each.
TEST(PipelineLayouts, TheSameOrderOfAdditionsHasTheSameBits) {
  const RunRecord reference = reference_of(llama_plan());
  for (const char* name : {"pp2", "pp3", "pp2-naive", "pp2-v3-interleaved", "pp2-zb_h1", "pp2-zb_v", "pp2-dualpipe_v",
                           "pp2-recompute_stage"}) {
    for (const Outcome& outcome : run(on(name, llama_plan()), ranks_of(name))) {
      EXPECT_TRUE(compare(reference, outcome.record).bitwise) << name;
    }
  }
}

// Whatever the order of the backwards, also where embedding and head share a table.
TEST(PipelineLayouts, AFixedTreeHasTheSameBitsInEverySchedule) {
  for (const bool tied : {false, true}) {
    spec::RunPlan base = llama_plan();
    base.model.tie_embeddings = tied;
    base.parallel.reduction = spec::Reduction::fixed_tree;
    RunRecord reference = tied ? run(on("pp2", base), 2).front().record : reference_of(base);
    std::vector<std::string> names = kinds();
    names.insert(names.end(), {"dp2-pp2-gpipe", "dp2-pp2-zb_h1", "pp3-gpipe", "dp2-pp2-zb_v"});
    names.insert(names.end(), {"pp2-zero1-gpipe", "dp2-pp2-zero1-zb_h1", "dp2-pp2-zero2-gpipe", "dp2-pp2-zero2-zb_v",
                               "dp2-pp2-v2-zero3-interleaved", "dp2-pp2-zero3-zb_h1", "dp2-pp2-zero3-zb_v",
                               "dp2-pp2-zero3-dualpipe_v"});
    for (const std::string& name : names) {
      for (const Outcome& outcome : run(on(name, base), ranks_of(name))) {
        EXPECT_TRUE(compare(reference, outcome.record).bitwise) << name << (tied ? ", tied" : "");
      }
    }
  }
}

// A table of one's own, with what ZeRO-3 gathers and frees in it.
TEST(PipelineLayouts, ATableThatShardsByStageTrains) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / text("sharding", getpid(), ".csv");
  for (const char* name : {"dp2-pp2-v2-zero3-interleaved", "dp2-pp2-zero3-zb_v", "dp2-pp2-zero3-gpipe"}) {
    spec::RunPlan plan = on(name, llama_plan());
    const schedule::Table whole = spec::pipeline_table(plan.parallel, 4);
    const schedule::Table table = schedule::add_sharding(whole, /*max_active=*/1);
    std::ofstream(path) << to_string(table);
    plan.parallel.schedule = path.string();
    const RunRecord reference = reference_of(plan);
    for (const Outcome& outcome : run(plan, ranks_of(name))) {
      const Comparison c = compare(reference, outcome.record);
      EXPECT_LE(worst(c), 1e-10) << name << " " << c.worst_parameter;
    }
  }
  std::filesystem::remove(path);
}

TEST(PipelineLayouts, CutsByHandAndPartsByThemselves) {
  for (const char* stages : {"E+1,5+H", "E,6+H", "E+6,H"}) {
    spec::RunPlan plan = gpt_plan();
    plan.parallel.stages = stages;
    expect_equals_plain_loop(plan, {"pp2", "pp2-gpipe"});
  }
}

// What a rank does is its list, and what it holds is what schedule/ says, counted while it ran.
TEST(PipelineLayouts, RanksDoTheirListsAndHoldWhatTheSimulatorSays) {
  for (const std::string& name : kinds()) {
    const spec::RunPlan plan = on(name, gpt_plan());
    comm::run_ranks(ranks_of(name), {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      trace::Recorder recorder(world.rank());
      Trainer trainer(plan, world, {.recorder = &recorder});
      trainer.step();
      const parallel::Executor& executor = trainer.executor();
      EXPECT_EQ(executor.in_flight_peak(),
                schedule::in_flight_peak(executor.table())[static_cast<size_t>(world.rank())])
          << name;
      using Row = std::tuple<std::string, int, int>;
      std::vector<Row> traced, planned;
      for (const trace::Event& event : recorder.events()) {
        if (event.track == trace::Track::compute) traced.emplace_back(event.name(), event.stage, event.microbatch);
      }
      for (const schedule::Action& action : executor.actions()) {
        if (schedule::is_communication(action.kind)) continue;
        planned.emplace_back(schedule::name(action.kind), action.stage, action.microbatch);
      }
      EXPECT_EQ(traced, planned) << name;
      world.set_recorder(nullptr);
    });
  }
}

TEST(PipelineLayouts, ValidationAndSavedWeightsAreThoseOfOneRank) {
  spec::RunPlan plan = gpt_plan();
  plan.data.validation_fraction = 0.2;
  const auto outcome = [&](const spec::RunPlan& laid_out, int ranks) {
    double loss = 0;
    std::vector<nn::Parameter> saved;
    comm::run_ranks(ranks, {}, [&](comm::ProcessGroup& world) {
      at::set_num_threads(1);
      Trainer trainer(laid_out, world);
      trainer.step();
      const double mine = trainer.validation_loss();
      const double again = trainer.validation_loss();
      EXPECT_EQ(mine, again);
      const auto weights = trainer.parameters_to_save();
      EXPECT_EQ(weights.empty(), world.rank() != 0);
      if (world.rank() == 0) std::tie(loss, saved) = std::tie(mine, weights);
    });
    return std::pair(loss, saved);
  };
  const auto [loss, saved] = outcome(plan, 1);
  for (const char* name : {"dp2-tp2-pp2", "pp2-v2-interleaved", "dp2-pp2-zero3", "pp2-zb_v"}) {
    const auto [pipelined, weights] = outcome(on(name, plan), ranks_of(name));
    EXPECT_NEAR(pipelined, loss, 1e-12) << name;
    ASSERT_EQ(weights.size(), saved.size()) << name;
    for (size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(weights[i].spec.name, saved[i].spec.name);
      EXPECT_TRUE(at::allclose(weights[i].tensor, saved[i].tensor, 1e-9, 1e-12)) << name << " " << saved[i].spec.name;
    }
  }
}

// -- deliberate faults -----------------------------------------------------------------------------------------------

Comparison compare_faulty(const spec::RunPlan& plan, int ranks,
                          const std::function<TrainerOptions(int rank)>& options_of) {
  const RunRecord reference = reference_of(plan);
  Comparison found;
  for (const Outcome& outcome : run(plan, ranks, options_of)) {
    const Comparison c = compare(reference, outcome.record);
    if (c.max_rel_grad > found.max_rel_grad) found.worst_parameter = c.worst_parameter;
    found.max_rel_grad = std::max(found.max_rel_grad, c.max_rel_grad);
    found.rel_norm = std::max(found.rel_norm, c.rel_norm);
  }
  return found;
}

// With the places of the tied table changed on every rank that has it.
Comparison with_places(const std::function<void(spec::ParameterPlace& place)>& change) {
  spec::RunPlan plan = on("dp2-pp2", gpt_plan());
  plan.train.steps = 1;
  const mesh::Mesh mesh = spec::make_mesh(plan.parallel, 4);
  std::vector<std::vector<spec::ParameterPlace>> places(4);
  return compare_faulty(plan, 4, [&](int rank) {
    auto& own = places[static_cast<size_t>(rank)];
    own = spec::place_on_rank(spec::parameters(plan.model), plan, mesh, rank);
    for (spec::ParameterPlace& place : own) {
      if (!place.tied_ranks.empty()) change(place);
    }
    return TrainerOptions{.places = &own};
  });
}

TEST(PipelineFault, ATiedGradientThatIsNotAddedIsNamed) {
  const Comparison found = with_places([](spec::ParameterPlace& place) { place.tied_ranks.clear(); });
  EXPECT_GT(found.max_rel_grad, 1e-3);
  EXPECT_EQ(found.worst_parameter, "embed.tokens.weight");
}

// Added over the stages before the data ranks reduce, and again after it.
TEST(PipelineFault, ATiedGradientThatIsAddedBeforeTheReductionTooIsNamed) {
  const Comparison found = with_places([](spec::ParameterPlace& place) { place.gradient_ranks = {0, 1, 2, 3}; });
  EXPECT_GT(found.max_rel_grad, 1e-3);
  EXPECT_EQ(found.worst_parameter, "embed.tokens.weight");
}

TEST(PipelineFault, ATiedTableThatIsCountedTwiceShowsInTheNorm) {
  const Comparison found = with_places([](spec::ParameterPlace& place) { place.counted_in_norm = true; });
  EXPECT_LE(found.max_rel_grad, 1e-10);
  EXPECT_GT(found.rel_norm, 1e-6);
}

TEST(PipelineFault, ANormOfOneStageAloneShows) {
  const spec::RunPlan plan = on("pp2", gpt_plan());
  const RunRecord reference = reference_of(plan);
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& inner) {
    at::set_num_threads(1);
    LeavingOut world(inner, [](const comm::Call& call) { return call.options.tag == "gradient norm"; });
    RunRecord record;
    Trainer trainer(plan, world, {.record = &record});
    trainer.step();
    EXPECT_GT(std::abs(record.steps[0].grad_norm - reference.steps[0].grad_norm), 1e-3 * reference.steps[0].grad_norm);
  });
}

TEST(PipelineFault, LabelsOfAnotherMicrobatchShow) {
  const spec::RunPlan plan = on("pp2", gpt_plan());
  const data::Batches batches(plan);
  const Comparison found = compare_faulty(plan, 2, [&](int rank) {
    return TrainerOptions{.source = [&batches, rank](int64_t step, int64_t microbatch) {
      return batches.train(step, rank == 1 ? microbatch ^ 1 : microbatch);
    }};
  });
  EXPECT_GT(found.max_rel_grad, 1e-3);
  EXPECT_FALSE(found.worst_parameter.empty());
}

// The sum so far made smaller with every micro-batch, as by a mean that is kept up to date.
TEST(PipelineFault, AnAccumulatedGradientThatIsRescaledShows) {
  const spec::RunPlan plan = on("pp2", gpt_plan());
  const RunRecord reference = reference_of(plan);
  comm::run_ranks(2, {}, [&](comm::ProcessGroup& world) {
    at::set_num_threads(1);
    RunRecord record;
    Trainer trainer(plan, world, {.record = &record});
    for (const nn::Parameter& parameter : trainer.model().parameter_list()) {
      parameter.tensor.register_hook([tensor = parameter.tensor](const at::Tensor&) {
        if (tensor.grad().defined()) tensor.mutable_grad().mul_(0.5);
      });
    }
    for (int64_t step = 0; step < plan.train.steps; ++step) trainer.step();
    trainer.record_end(record);
    const Comparison found = compare(reference, record);
    EXPECT_GT(found.max_rel_grad, 1e-3);
    EXPECT_FALSE(found.worst_parameter.empty());
  });
}

}  // namespace
}  // namespace lockstep::train
