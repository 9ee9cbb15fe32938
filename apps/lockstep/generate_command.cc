#include <iostream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/distributed/init.h"
#include "lockstep/nn/generator.h"
#include "lockstep/spec/toml.h"
#include "lockstep/train/build.h"

namespace lockstep::cli {
namespace {

struct GenerateOptions {
  std::string run, prompt = "\n";
  int64_t tokens = 200;
  nn::SamplingOptions sampling{.temperature = 0.8, .top_k = 0, .seed = 1};
  bool json = false;
};

// Bytes are tokens of their own; other vocabularies are written as numbers.
std::vector<int64_t> to_tokens(const std::string& prompt, bool is_text) {
  std::vector<int64_t> tokens;
  if (is_text) {
    for (const unsigned char byte : prompt) tokens.push_back(byte);
    return tokens;
  }
  for (const std::string& number : split_list(prompt)) {
    size_t used = 0;
    int64_t token = -1;
    try {
      token = std::stoll(number, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != number.size()) {
      throw InvalidArgument(
          Problem{"--prompt", prompt, "this run's vocabulary is not bytes: give token numbers", "0,1,2"}.message());
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::string to_text(const std::vector<int64_t>& tokens, bool is_text) {
  if (!is_text) return join(tokens, " ");
  std::string result;
  for (const int64_t token : tokens) result.push_back(static_cast<char>(token));
  return result;
}

int generate(const GenerateOptions& options) {
  const std::filesystem::path run(options.run);
  if (!std::filesystem::exists(run / "config.toml")) {
    throw InvalidArgument(
        Problem{"--run", options.run, "must be the folder of a finished run (config.toml and weights/ in it)", ""}
            .message());
  }
  prepare_rank_thread(1);
  spec::RunPlan plan = spec::read_plan(run / "config.toml");
  plan.model.weights = (run / "weights").string();
  const auto model = train::build(plan, at::kCPU).model;
  model->eval();
  const bool is_text = plan.data.format == spec::DataFormat::bytes;
  const std::vector<int64_t> prompt = to_tokens(options.prompt, is_text);
  if (prompt.empty()) throw InvalidArgument(Problem{"--prompt", "", "must not be empty", ""}.message());
  for (const int64_t token : prompt) {
    if (token < 0 || token >= plan.model.vocab) {
      throw InvalidArgument(
          Problem{"--prompt", text(token), text("must be a token below model.vocab = ", plan.model.vocab), ""}
              .message());
    }
  }
  const std::vector<int64_t> tokens = nn::generate(*model, prompt, options.tokens, options.sampling);
  const std::string generated = to_text(tokens, is_text);
  if (options.json) {
    const nlohmann::ordered_json document = {{"text", generated}, {"tokens", tokens}};
    std::cout << document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << options.prompt << (is_text ? "" : " ") << generated << "\n";
  }
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("generate", "samples from a trained run");
  command->footer("Example: lockstep generate --run runs/shakespeare --prompt \"ROMEO.\" --tokens 300");
  const auto options = std::make_shared<GenerateOptions>();
  command->add_option("--run", options->run, "the run's folder")->required();
  command->add_option("--prompt", options->prompt,
                      "text, or token numbers separated by commas when the vocabulary is not bytes");
  command->add_option("--tokens", options->tokens, "how many to add")
      ->check(within("--tokens", int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--temperature", options->sampling.temperature, "0: always the likeliest")
      ->check(within("--temperature", 0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "only the k likeliest; 0: all")
      ->check(within("--top-k", int64_t{0}, int64_t{1} << 32))
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "of the draws")->capture_default_str();
  command->add_flag("--json", options->json, "print text and tokens as one JSON document");
  command->callback([&chosen, options] { chosen = [options] { return generate(*options); }; });
}

}  // namespace lockstep::cli
