#include "lockstep/spec/stages.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

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

// What a cut should have little of, in this order: the most of a rank, the most of a stage, the sum of stages' squares.
using Badness = std::tuple<double, double, double>;

Badness badness(const std::vector<int64_t>& counts, const std::vector<double>& costs,
                const std::vector<int>& rank_of_stage) {
  std::map<int, double> of_rank;
  double most_of_rank = 0, most = 0, squares = 0;
  auto part = costs.begin();
  for (size_t stage = 0; stage < counts.size(); ++stage) {
    const double cost = std::reduce(part, part + counts[stage]);
    part += counts[stage];
    most_of_rank = std::max(most_of_rank, of_rank[rank_of_stage[stage]] += cost);
    most = std::max(most, cost);
    squares += cost * cost;
  }
  return {most_of_rank, most, squares};
}

// Moves a part from one stage to another, and those between them along, for as long as one of the moves is a gain.
void even_out_ranks(std::vector<int64_t>& counts, const std::vector<double>& costs,
                    const std::vector<int>& rank_of_stage) {
  Badness least = badness(counts, costs, rank_of_stage);
  const auto gains = [&](int64_t& from, int64_t& to) {
    if (from == 1 || &from == &to) return false;
    --from, ++to;
    const Badness moved = badness(counts, costs, rank_of_stage);
    const bool is_gain = moved < least;
    if (is_gain) {
      least = moved;
    } else {
      ++from, --to;
    }
    return is_gain;
  };
  for (bool again = true; again;) {
    again = false;
    for (int64_t& from : counts) {
      for (int64_t& to : counts) again = gains(from, to) || again;
    }
  }
}

// Of one stage per rank the longest is as short as can be. Of several, equally short stages may leave one rank twice
// the work of another.
std::vector<int64_t> balanced_counts(const RunPlan& plan) {
  std::vector<double> costs;
  for (const ModelPart& part : parts(plan.model)) costs.push_back(forward_flops(plan.model, part.name));
  std::vector<int64_t> counts = balance(costs, num_stages(plan.parallel));
  if (plan.parallel.chunks > 1) even_out_ranks(counts, costs, rank_of_stage(plan.parallel));
  return counts;
}

void check_stages(const RunPlan& plan, Rules& rules) {
  const std::string& written = plan.parallel.stages;
  const int64_t stages = num_stages(plan.parallel), layers = plan.model.layers;
  if (written.empty()) {
    if (stages <= layers + 2) return;
    const auto works = [&](int64_t candidate) { return candidate * plan.parallel.chunks <= layers + 2; };
    rules.broken("parallel.pipeline", plan.parallel.pipeline,
                 text("times parallel.chunks = ", plan.parallel.chunks, " makes ", stages, " stages of model.layers = ",
                      layers, ", the embedding and the head: a stage has one of them at least"),
                 nearest_values(plan.parallel.pipeline, 1, layers + 2, works));
    return;
  }
  const std::vector<int64_t> counts = parse_stages(written);
  const bool fits = layers >= 1 && static_cast<int64_t>(counts.size()) == stages &&
                    std::reduce(counts.begin(), counts.end()) == layers + 2 &&
                    to_string(stages_of_counts(counts, layers)) == written;
  if (fits) return;
  const bool cuts = layers >= 1 && stages <= layers + 2;
  rules.broken("parallel.stages", text('"', written, '"'),
               text("must be ", stages, " stages of E (the embedding), then ", layers,
                    " layers, then H (the head), joined by + within a stage"),
               cuts ? text('"', to_string(stages_of_counts(balanced_counts(plan), layers)), '"') : "");
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

double forward_flops(const ModelSpec& model, std::string_view part) {
  const auto hidden = static_cast<double>(model.hidden), sequence = static_cast<double>(model.sequence);
  if (part == "embed") return hidden;
  if (part == "head") return 2 * hidden * static_cast<double>(model.vocab);
  const auto queries = static_cast<double>(model.heads * model.head_size());
  const auto keys = static_cast<double>(model.kv_heads * model.head_size());
  const double ffn_matrices = model.activation == Activation::swiglu ? 3 : 2;
  const double linears = 2 * hidden * (2 * queries + 2 * keys + ffn_matrices * static_cast<double>(model.ffn_hidden));
  return linears + 4 * sequence * queries;
}

std::vector<int64_t> balance(const std::vector<double>& costs, int64_t stages) {
  const auto parts = static_cast<int64_t>(costs.size());
  if (stages < 1 || stages > parts) {
    throw InvalidArgument(
        Problem{"stages", text(stages), text("must be between 1 and the ", parts, " parts"), text(parts)}.message());
  }
  using Cost = std::pair<double, double>;  // the most expensive stage, the sum of squares
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const auto at = [&](auto& table, int64_t stage, int64_t end) -> auto& {
    return table[static_cast<size_t>(stage * (parts + 1) + end)];
  };
  // best(s, e): of the first e parts on s stages; begin(s, e): where the last of these stages begins.
  std::vector<Cost> best(static_cast<size_t>((stages + 1) * (parts + 1)), {kInfinite, kInfinite});
  std::vector<int64_t> begin(best.size(), 0);
  at(best, 0, 0) = {0, 0};
  for (int64_t stage = 1; stage <= stages; ++stage) {
    for (int64_t end = stage; end <= parts; ++end) {
      double cost = 0;
      for (int64_t from = end - 1; from >= stage - 1; --from) {
        cost += costs[static_cast<size_t>(from)];
        const auto [most, squares] = at(best, stage - 1, from);
        const Cost candidate{std::max(most, cost), squares + cost * cost};
        if (candidate >= at(best, stage, end)) continue;
        at(best, stage, end) = candidate;
        at(begin, stage, end) = from;
      }
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(stages));
  for (int64_t stage = stages, end = parts; stage > 0; --stage) {
    counts[static_cast<size_t>(stage - 1)] = end - at(begin, stage, end);
    end = at(begin, stage, end);
  }
  return counts;
}

std::vector<Stage> cut_into_stages(const RunPlan& plan) {
  const std::string& written = plan.parallel.stages;
  const auto counts = written.empty() ? balanced_counts(plan) : parse_stages(written);
  return stages_of_counts(counts, plan.model.layers);
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
  const bool counts = rules.within("parallel.pipeline", plan.parallel.pipeline, 1, kMost) &&
                      rules.within("parallel.chunks", plan.parallel.chunks, 1, kMost);
  const bool scheduled = counts && check_schedule(plan, std::max<int64_t>(1, data_ranks), rules);
  // Stages lie where the schedule has them.
  if (scheduled && plan.model.layers >= 1) check_stages(plan, rules);
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
