#include "lockstep/spec/stages.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/schedule/generators.h"
#include "lockstep/schedule/passes.h"
#include "lockstep/schedule/validate.h"
#include "lockstep/spec/microbatches.h"
#include "lockstep/spec/rules.h"

namespace lockstep::spec {

namespace {

std::vector<std::string_view> split(std::string_view list, char separator) {
  std::vector<std::string_view> words;
  for (;;) {
    const size_t end = list.find(separator);
    words.push_back(list.substr(0, end));
    if (end == std::string_view::npos) return words;
    list.remove_prefix(end + 1);
  }
}

int64_t num_stages(const ParallelSpec& parallel) {
  return parallel.pipeline * parallel.chunks;
}

// The parts by number: 0 is the embedding, then the layers, then the head.
Stage stage_of_parts(mesh::Range parts, int64_t layers) {
  const int64_t begin = std::max<int64_t>(parts.offset - 1, 0);
  const int64_t end = std::min(parts.offset + parts.size - 1, layers);
  return {.embed = parts.offset == 0,
          .layers = {begin, std::max<int64_t>(end - begin, 0)},
          .head = parts.offset + parts.size == layers + 2};
}

// The number of parts of each stage as the user wrote them; empty when it cannot be read.
std::vector<int64_t> parse_stages(std::string_view stages) {
  std::vector<int64_t> counts;
  for (const std::string_view stage : split(stages, ',')) {
    int64_t count = 0;
    for (const std::string_view word : split(stage, '+')) {
      int64_t layers = 1;
      if (word != "E" && word != "H") {
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layers);
        if (error != std::errc{} || end != word.data() + word.size() || layers < 1 || layers > (int64_t{1} << 20)) {
          return {};
        }
      }
      count += layers;
    }
    counts.push_back(count);
  }
  return counts;
}

std::vector<Stage> stages_of_counts(const std::vector<int64_t>& counts, int64_t layers) {
  std::vector<Stage> stages;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    stages.push_back(stage_of_parts({offset, count}, layers));
    offset += count;
  }
  return stages;
}

// By stage, its number of layers: one layer after the other goes where there is least, by rank and then by stage. With
// layers that cost the same this leaves, of all cuts, the most of a rank least (Gross 1956: a sum of convex terms).
std::vector<int64_t> balanced_layers(const RunPlan& plan, const PartCosts& costs) {
  const auto stages = static_cast<size_t>(num_stages(plan.parallel));
  const std::vector<int> rank_of = rank_of_stage(plan.parallel);
  struct Load {
    double ends = 0;  // embedding, head
    int64_t layers = 0;
  };
  std::vector<Load> of_stage(stages), by_rank(static_cast<size_t>(plan.parallel.pipeline));
  const auto of_rank = [&](size_t stage) -> Load& { return by_rank[static_cast<size_t>(rank_of[stage])]; };
  const auto cost = [&](const Load& load) { return load.ends + costs.layer * static_cast<double>(load.layers); };
  of_stage.front().ends += costs.embedding;
  of_stage.back().ends += costs.head;
  for (size_t stage = 0; stage < stages; ++stage) {
    if (stage > 0 && stage + 1 < stages) of_stage[stage].layers = 1;
    of_rank(stage).ends += of_stage[stage].ends;
    of_rank(stage).layers += of_stage[stage].layers;
  }
  const auto middle = static_cast<int64_t>(stages) - 2;
  for (int64_t left = plan.model.layers - std::max<int64_t>(middle, 0); left > 0; --left) {
    size_t least = 0;
    const auto key = [&](size_t stage) { return std::pair(cost(of_rank(stage)), cost(of_stage[stage])); };
    for (size_t stage = 1; stage < stages; ++stage) {
      if (key(stage) < key(least)) least = stage;
    }
    ++of_stage[least].layers;
    ++of_rank(least).layers;
  }
  std::vector<int64_t> layers;
  for (const Load& load : of_stage) layers.push_back(load.layers);
  return layers;
}

void check_stages(const RunPlan& plan, Rules& rules) {
  const std::string& written = plan.parallel.stages;
  const int64_t stages = num_stages(plan.parallel), layers = plan.model.layers;
  if (written.empty() || written == kMeasured) {
    if (stages <= layers + 2) return;
    const auto works = [&](int64_t candidate) { return candidate * plan.parallel.chunks <= layers + 2; };
    rules.broken("parallel.pipeline", plan.parallel.pipeline,
                 text("times parallel.chunks = ", plan.parallel.chunks, " makes ", stages, " stages of model.layers = ",
                      layers, ", the embedding and the head: a stage has one of them at least"),
                 nearest_values(plan.parallel.pipeline, 1, layers + 2, works));
    return;
  }
  const std::vector<int64_t> counts = parse_stages(written);
  const bool fits = static_cast<int64_t>(counts.size()) == stages &&
                    std::reduce(counts.begin(), counts.end()) == layers + 2 &&
                    to_string(stages_of_counts(counts, layers)) == written;
  if (fits) return;
  const bool cuts = stages <= layers + 2;
  rules.broken("parallel.stages", text('"', written, '"'),
               text("must be ", stages, " stages of E (the embedding), then ", layers,
                    " layers, then H (the head), joined by + within a stage, or \"measured\""),
               cuts ? text('"', to_string(cut_into_stages(plan, forward_flops(plan.model))), '"') : "");
}

schedule::Shape shape_of(const ParallelSpec& parallel, int64_t microbatches) {
  return {.ranks = static_cast<int>(parallel.pipeline),
          .microbatches = static_cast<int>(microbatches),
          .chunks = static_cast<int>(parallel.chunks)};
}

// A table of the user's own instead of a kind.
bool is_file(const ParallelSpec& parallel) {
  return parallel.schedule.ends_with(".csv");
}

schedule::Table read_table(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream content;
  content << in.rdbuf();
  if (!in) throw InvalidArgument("cannot be read");
  return schedule::parse_table(content.str());
}

// How many micro-batches data ranks have: the fewest and the most.
std::set<int64_t> microbatch_counts(const RunPlan& plan, int64_t data_ranks) {
  const TrainSpec& train = plan.train;
  const bool whole = train.microbatch >= 1 && train.global_batch >= 1 && train.global_batch % train.microbatch == 0;
  const int64_t count = whole ? num_microbatches(train) : data_ranks;
  return {std::max<int64_t>(1, count / data_ranks), std::max<int64_t>(1, (count + data_ranks - 1) / data_ranks)};
}

// What schedule/ says of it, and that it is for these ranks, chunks and micro-batches. Whether it places stages.
bool check_file(const RunPlan& plan, int64_t data_ranks, Rules& rules) {
  const ParallelSpec& parallel = plan.parallel;
  const std::string value = text('"', parallel.schedule, '"');
  const auto is = [&](const char* what, int64_t in_file, const char* field, int64_t needed) {
    if (in_file != needed) {
      rules.broken("parallel.schedule", value, text("has ", in_file, " ", what, ", ", field, " ", needed));
    }
    return in_file == needed;
  };
  try {
    const schedule::Table table = read_table(parallel.schedule);
    const auto problems = schedule::validate(table);
    if (!problems.empty()) rules.broken("parallel.schedule", value, problems.front().message());
    if (!problems.empty() || !is("ranks", table.ranks, "parallel.pipeline =", parallel.pipeline) ||
        !is("stages", table.stages(), "parallel.pipeline * parallel.chunks =", num_stages(parallel))) {
      return false;
    }
    for (const int64_t count : microbatch_counts(plan, data_ranks)) {
      if (!is("micro-batches", table.microbatches, "a data rank has", count)) break;
    }
    return true;
  } catch (const InvalidArgument& error) {
    rules.broken("parallel.schedule", value, error.what());
    return false;
  }
}

// Micro-batches as the schedule's generator takes them, on the data ranks that have most and fewest.
void check_kind(const schedule::Generator& generator, const RunPlan& plan, int64_t data_ranks, Rules& rules) {
  const ParallelSpec& parallel = plan.parallel;
  for (const int64_t microbatches : microbatch_counts(plan, data_ranks)) {
    const auto problems = generator.check(shape_of(parallel, microbatches));
    if (problems.empty()) continue;
    const Problem& problem = problems.front();
    const bool is_chunks = problem.field == "chunks";
    rules.broken(is_chunks ? "parallel.chunks" : "parallel.schedule",
                 is_chunks ? problem.value : text('"', parallel.schedule, '"'),
                 is_chunks ? text("parallel.schedule = \"", parallel.schedule, "\": ", problem.rule)
                           : text("with ", problem.value, " ", problem.field, " a data rank: ", problem.rule),
                 is_chunks ? problem.nearest : text(problem.field, " = ", problem.nearest));
    return;
  }
}

// Whether parallel.schedule places stages.
bool check_schedule(const RunPlan& plan, int64_t data_ranks, Rules& rules) {
  const std::string& name = plan.parallel.schedule;
  if (is_file(plan.parallel)) return check_file(plan, data_ranks, rules);
  std::vector<std::string> names;
  for (const schedule::Generator& generator : schedule::generators()) {
    names.emplace_back(generator.name);
    if (generator.name != name) continue;
    check_kind(generator, plan, data_ranks, rules);
    return true;
  }
  rules.broken("parallel.schedule", text('"', name, '"'), "must be one of " + join(names) + ", or a .csv file",
               nearest_name(name, names));
  return false;
}

// Of a file it may be more than computing.
schedule::Table computing_table(const ParallelSpec& parallel, int64_t microbatches) {
  if (is_file(parallel)) return read_table(parallel.schedule);
  return schedule::make_table(parallel.schedule, shape_of(parallel, microbatches));
}

}  // namespace

PartCosts forward_flops(const ModelSpec& model) {
  const auto hidden = static_cast<double>(model.hidden), sequence = static_cast<double>(model.sequence);
  const auto queries = static_cast<double>(model.heads * model.head_size());
  const auto keys = static_cast<double>(model.kv_heads * model.head_size());
  const double ffn_matrices = model.activation == Activation::swiglu ? 3 : 2;
  const double linears = 2 * hidden * (2 * queries + 2 * keys + ffn_matrices * static_cast<double>(model.ffn_hidden));
  return {.embedding = hidden,
          .layer = linears + 4 * sequence * queries,
          .head = 2 * hidden * static_cast<double>(model.vocab)};
}

std::vector<Stage> cut_into_stages(const RunPlan& plan, const PartCosts& costs) {
  std::vector<int64_t> counts = balanced_layers(plan, costs);
  ++counts.front();  // the embedding
  ++counts.back();   // the head
  return stages_of_counts(counts, plan.model.layers);
}

std::vector<Stage> cut_into_stages(const RunPlan& plan) {
  const std::string& written = plan.parallel.stages;
  if (awaits_measuring(plan.parallel)) {
    throw InvalidArgument(
        Problem{"parallel.stages", text('"', written, '"'),
                "lockstep train and verify measure before their ranks start; a plan that runs says where it is cut",
                text('"', to_string(cut_into_stages(plan, forward_flops(plan.model))), '"')}
            .message());
  }
  if (written.empty() || written == kMeasured) return cut_into_stages(plan, forward_flops(plan.model));
  return stages_of_counts(parse_stages(written), plan.model.layers);
}

std::string to_string(const std::vector<Stage>& stages) {
  std::vector<std::string> words;
  for (const Stage& stage : stages) {
    std::vector<std::string> parts;
    if (stage.embed) parts.emplace_back("E");
    if (stage.layers.size > 0) parts.push_back(text(stage.layers.size));
    if (stage.head) parts.emplace_back("H");
    words.push_back(join(parts, "+"));
  }
  return join(words, ",");
}

bool awaits_measuring(const ParallelSpec& parallel) {
  return parallel.stages == kMeasured && num_stages(parallel) > 1;
}

std::vector<int> rank_of_stage(const ParallelSpec& parallel) {
  if (is_file(parallel)) return read_table(parallel.schedule).rank_of_stage;
  return schedule::place_stages(schedule::find_generator(parallel.schedule).placement,
                                static_cast<int>(parallel.pipeline), static_cast<int>(parallel.chunks));
}

std::vector<int> stages_on_rank(const ParallelSpec& parallel, int pipeline_rank) {
  const std::vector<int> ranks = rank_of_stage(parallel);
  std::vector<int> stages;
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    if (ranks[stage] == pipeline_rank) stages.push_back(static_cast<int>(stage));
  }
  return stages;
}

std::vector<std::string> parameters_of(const Stage& stage, const ModelSpec& model) {
  std::vector<std::string> names;
  const std::vector<ModelPart> all = parts(model);
  const auto add = [&](int64_t part) {
    const ModelPart& of = all[static_cast<size_t>(part)];
    names.insert(names.end(), of.parameters.begin(), of.parameters.end());
  };
  if (stage.embed) add(0);
  for (int64_t layer = 0; layer < stage.layers.size; ++layer) add(1 + stage.layers.offset + layer);
  if (stage.head) add(model.layers + 1);
  return names;
}

std::vector<Problem> validate_pipeline(const RunPlan& plan, int64_t data_ranks) {
  Rules rules;
  constexpr int64_t kMost = 1 << 16;
  const bool layers = plan.model.layers >= 1 && plan.model.layers <= kMost;
  const bool counts = rules.within("parallel.pipeline", plan.parallel.pipeline, 1, kMost) &&
                      rules.within("parallel.chunks", plan.parallel.chunks, 1, kMost);
  const bool scheduled = counts && check_schedule(plan, std::max<int64_t>(1, data_ranks), rules);
  // Stages lie where the schedule has them.
  if (scheduled && layers) check_stages(plan, rules);
  return rules.take();
}

schedule::Table pipeline_table(const ParallelSpec& parallel, int64_t microbatches) {
  using Kind = schedule::Action::Kind;
  schedule::Table table = computing_table(parallel, microbatches);
  const auto has = [&](Kind kind) {
    return std::ranges::any_of(table.actions_by_rank, [&](const auto& actions) {
      return std::ranges::find(actions, kind, &schedule::Action::kind) != actions.end();
    });
  };
  if (parallel.recompute == Recompute::stage && !has(Kind::recompute)) table = schedule::add_recompute(table);
  if (!schedule::has_communication(table)) table = schedule::add_communication(table);
  return has(Kind::optimizer_step) ? table : schedule::add_step(table);
}

schedule::Table step_table(const RunPlan& plan, int world_size) {
  const int data_ranks = make_mesh(plan.parallel, world_size).size(mesh::Axis::data);
  return pipeline_table(plan.parallel, microbatches_of_rank(num_microbatches(plan.train), {0, data_ranks}).size);
}

schedule::Table forward_table(const ParallelSpec& parallel, int64_t microbatches) {
  schedule::Table table = computing_table(parallel, microbatches);
  for (auto& actions : table.actions_by_rank) {
    std::erase_if(actions,
                  [](const schedule::Action& action) { return action.kind != schedule::Action::Kind::forward; });
    for (schedule::Action& action : actions) action.overlaps_next = false;
  }
  return schedule::add_communication(table);
}

}  // namespace lockstep::spec
