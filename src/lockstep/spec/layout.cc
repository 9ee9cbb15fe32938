#include "lockstep/spec/layout.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/schedule/generators.h"
#include "lockstep/spec/later.h"
#include "lockstep/spec/names.h"
#include "lockstep/spec/rules.h"

namespace lockstep::spec {

namespace {

constexpr int64_t kMaxNumber = 1'000'000;
constexpr std::string_view kWords =
    "single, dpN, tpN, sp, ppN, vN, zeroN (zeroNgM), a kind of lockstep schedule, accN, recompute_full, _sqrt, "
    "_selective and _stage, fixed_tree, fp32, fp64, bf16 and fp16";

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (;;) {
    const size_t dash = name.find('-');
    words.push_back(name.substr(0, dash));
    if (dash == std::string_view::npos) return words;
    name.remove_prefix(dash + 1);
  }
}

// The number after `prefix` when the word is both: "dp2" -> 2.
std::optional<int64_t> number_after(std::string_view prefix, std::string_view word) {
  if (!word.starts_with(prefix)) return std::nullopt;
  word.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size() || number < 1 || number > kMaxNumber)
    return std::nullopt;
  return number;
}

// "zero2", "zero3g2": the stage and the ranks of a group, 0 when absent.
std::optional<std::pair<int64_t, int64_t>> zero_of(std::string_view word) {
  const size_t g = word.find('g');
  const auto stage = number_after("zero", word.substr(0, g));
  if (!stage || g == std::string_view::npos) return stage ? std::optional(std::pair(*stage, int64_t{0})) : std::nullopt;
  const auto group = number_after("g", word.substr(g));
  return group ? std::optional(std::pair(*stage, *group)) : std::nullopt;
}

bool is_later(std::string_view word) {
  return std::ranges::any_of(later_layout_words(), [&](std::string_view later) {
    if (!word.starts_with(later)) return false;
    return word.substr(later.size()).find_first_not_of("0123456789") == std::string_view::npos;
  });
}

bool is_schedule(std::string_view word) {
  return std::ranges::any_of(schedule::generators(), [&](const auto& generator) { return generator.name == word; });
}

// A table of the user's own has none.
std::string name_of_schedule(const std::string& schedule) {
  return is_schedule(schedule) ? schedule : "";
}

[[noreturn]] void refuse_layout(std::string_view name, std::string_view why, const std::string& nearest) {
  throw InvalidArgument(Problem{"layout", text('"', name, '"'), std::string(why), nearest}.message());
}

// "recompute_full" -> full; "recompute_none" is what a layout without the word has.
std::optional<Recompute> recompute_of(std::string_view word) {
  constexpr std::string_view kPrefix = "recompute_";
  if (!word.starts_with(kPrefix)) return std::nullopt;
  const auto recompute = from_name<Recompute>(word.substr(kPrefix.size()));
  return recompute == Recompute::none ? std::nullopt : recompute;
}

// The layout that the words name, in whatever order; throws on a word that is none.
Layout gather(std::string_view name) {
  Layout layout;
  for (const std::string_view word : words_of(name)) {
    if (const auto data = number_after("dp", word)) {
      layout.data = *data;
    } else if (const auto tensor = number_after("tp", word)) {
      layout.tensor = *tensor;
    } else if (const auto pipeline = number_after("pp", word)) {
      layout.pipeline = *pipeline;
    } else if (const auto chunks = number_after("v", word)) {
      layout.chunks = *chunks;
    } else if (is_schedule(word)) {
      layout.schedule = word;
    } else if (word == "sp") {
      layout.sequence_parallel = true;
    } else if (const auto zero = zero_of(word)) {
      layout.zero = zero->first;
      layout.zero_group = zero->second;
    } else if (const auto accumulate = number_after("acc", word)) {
      layout.accumulate = *accumulate;
    } else if (const auto recompute = recompute_of(word)) {
      layout.recompute = *recompute;
    } else if (word == "fixed_tree") {
      layout.fixed_tree = true;
    } else if (const auto precision = from_name<Precision>(word)) {
      layout.precision = *precision;
    } else if (is_later(word)) {
      throw Unsupported(text("layout = \"", name, "\": ", word, " is not supported by this version; it has ", kWords));
    } else if (word != "single") {
      const std::vector<std::string> known = {"single",
                                              "dp2",
                                              "tp2",
                                              "sp",
                                              "pp2",
                                              "v2",
                                              "gpipe",
                                              "interleaved",
                                              "zero2",
                                              "acc2",
                                              "recompute_full",
                                              "recompute_sqrt",
                                              "recompute_selective",
                                              "fixed_tree",
                                              "fp32",
                                              "fp64",
                                              "bf16",
                                              "fp16"};
      refuse_layout(name, text('"', word, "\" is no layout; known are ", kWords), nearest_name(word, known));
    }
  }
  return layout;
}

}  // namespace

std::string to_string(const Layout& layout) {
  std::vector<std::string> words;
  if (layout.data != 1) words.push_back(text("dp", layout.data));
  if (layout.tensor != 1) words.push_back(text("tp", layout.tensor));
  if (layout.sequence_parallel) words.emplace_back("sp");
  if (layout.pipeline != 1) words.push_back(text("pp", layout.pipeline));
  if (layout.chunks) words.push_back(text("v", *layout.chunks));
  if (layout.zero) {
    words.push_back(text("zero", *layout.zero));
    if (layout.zero_group != 0) words.back() += text("g", layout.zero_group);
  }
  if (!layout.schedule.empty()) words.push_back(layout.schedule);
  if (layout.accumulate) words.push_back(text("acc", *layout.accumulate));
  if (layout.recompute) words.push_back(text("recompute_", name(*layout.recompute)));
  if (layout.fixed_tree) words.emplace_back("fixed_tree");
  if (layout.precision) words.emplace_back(name(*layout.precision));
  return words.empty() ? "single" : join(words, "-");
}

Layout parse_layout(std::string_view name) {
  const Layout layout = gather(name);
  if (to_string(layout) != name) {
    refuse_layout(
        name,
        "each word stands once, in the order dpN-tpN-sp-ppN-vN-zeroN-SCHEDULE-accN-recompute_MODE-fixed_tree-precision",
        to_string(layout));
  }
  return layout;
}

RunPlan apply(const Layout& layout, RunPlan plan) {
  plan.parallel.data = layout.data;
  plan.parallel.tensor = layout.tensor;
  plan.parallel.sequence_parallel = layout.sequence_parallel;
  plan.parallel.pipeline = layout.pipeline;
  if (!layout.schedule.empty()) {
    plan.parallel.schedule = layout.schedule;
    plan.parallel.chunks = schedule::find_generator(layout.schedule).usual_chunks;
  }
  if (layout.chunks) plan.parallel.chunks = *layout.chunks;
  if (layout.zero) {
    plan.parallel.zero = *layout.zero;
    plan.parallel.zero_group = layout.zero_group;
  }
  if (layout.recompute) plan.parallel.recompute = *layout.recompute;
  if (layout.fixed_tree) plan.parallel.reduction = Reduction::fixed_tree;
  if (layout.precision) plan.train.precision = *layout.precision;
  if (layout.accumulate) {
    const int64_t parts = layout.data * *layout.accumulate, batch = plan.train.global_batch;
    if (batch % parts != 0 || batch < parts) {
      const auto works = [&](int64_t candidate) { return batch % (layout.data * candidate) == 0; };
      const std::string nearest =
          nearest_values(*layout.accumulate, 1, std::max<int64_t>(1, batch / layout.data), works);
      refuse_layout(to_string(layout),
                    text("train.global_batch = ", batch, " must be a multiple of ", layout.data, " data ranks times ",
                         *layout.accumulate, " micro-batches"),
                    nearest.empty() ? "" : "acc" + nearest);
    }
    plan.train.microbatch = batch / parts;
  }
  return plan;
}

Layout layout_of(const RunPlan& plan, int world_size) {
  const int64_t model_ranks = std::max<int64_t>(1, plan.parallel.tensor * plan.parallel.pipeline);
  Layout layout{.data = world_size / model_ranks,
                .tensor = plan.parallel.tensor,
                .sequence_parallel = plan.parallel.sequence_parallel,
                .pipeline = plan.parallel.pipeline,
                .fixed_tree = plan.parallel.reduction == Reduction::fixed_tree};
  if (plan.parallel.pipeline > 1 || plan.parallel.chunks > 1)
    layout.schedule = name_of_schedule(plan.parallel.schedule);
  if (plan.parallel.chunks > 1) layout.chunks = plan.parallel.chunks;
  if (plan.parallel.zero > 0) {
    layout.zero = plan.parallel.zero;
    layout.zero_group = plan.parallel.zero_group;
  }
  if (plan.parallel.recompute != Recompute::none) layout.recompute = plan.parallel.recompute;
  if (plan.train.precision != Precision::fp32) layout.precision = plan.train.precision;
  return layout;
}

}  // namespace lockstep::spec
