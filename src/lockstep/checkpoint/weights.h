// A model's weights as a folder that Hugging Face's transformers reads and writes: config.json, and model.safetensors
// or several shards with model.safetensors.index.json. GPT-2 and Llama carry their names; a combination that
// transformers has no class for keeps ours, which is said in one line.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/nn/parameters.h"
#include "lockstep/spec/model.h"

namespace lockstep::checkpoint {

struct SaveOptions {
  int64_t max_shard_bytes = int64_t{5} << 30;  // a tensor larger than that has a file of its own
};

// Writes `folder` (made if missing).
//   throws  Error naming the file and the reason when it cannot be written
void save_weights(const std::filesystem::path& folder, const spec::ModelSpec& model,
                  const std::vector<nn::Parameter>& parameters, const SaveOptions& options = {});

// Copies a folder's weights into `parameters`, of each the region that it holds, converted to its dtype.
//   throws  InvalidArgument naming the fields of `model` that the folder's config.json contradicts; CorruptCheckpoint
//   naming what is missing, unexpected, of another shape, or damaged
void load_weights(const std::filesystem::path& folder, const spec::ModelSpec& model,
                  const std::vector<nn::Parameter>& parameters);

// The model that a folder's config.json describes.
//   throws  Unsupported for a model that is neither GPT-2, Llama nor ours; CorruptCheckpoint for a damaged file
spec::ModelSpec read_model_spec(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint
