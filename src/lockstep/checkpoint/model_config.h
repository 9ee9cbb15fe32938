// config.json: what a folder of weights is the weights of.
#pragma once

#include <string>
#include <vector>

#include "lockstep/spec/model.h"

namespace lockstep::checkpoint {

// The text of config.json for transformers, or with our keys where it has no class for the model.
//   dtype   of the weights, as torch spells it: "float32"
std::string to_config_json(const spec::ModelSpec& model, const std::string& dtype);

// Dropout is left at 0: it is a setting of training, not of the weights.
//   source  the file's name in messages
//   throws  Unsupported for a model that is neither GPT-2, Llama nor ours; CorruptCheckpoint for a damaged file
spec::ModelSpec parse_config_json(const std::string& json, const std::string& source);

// What of `model` the weights contradict, as problems of the configuration's fields: head counts, activation and
// constants that no shape tells, and the widths. The rotary model's sequence may differ, as may what only training
// uses.
//   stored   what the weights' config.json describes
std::vector<Problem> contradictions(const spec::ModelSpec& model, const spec::ModelSpec& stored);

}  // namespace lockstep::checkpoint
