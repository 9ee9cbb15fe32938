// How Hugging Face's transformers names and lays out the weights of a model, and how that maps to our parameters.
#pragma once

#include <string>
#include <vector>

#include "lockstep/spec/model.h"

namespace lockstep::checkpoint {

// Which class of transformers reads a model's weights; `lockstep`: none does, they keep our names.
enum class Family { gpt2, llama, lockstep };

Family family_of(const spec::ModelSpec& model);

// One tensor of a file.
struct StoredTensor {
  std::string name;
  std::vector<std::string> parts;  // our parameters, joined along their outputs (dim 0)
  bool transposed = false;         // stored as [in, out]
};

// Every tensor of the model's files, in the order of the forward pass; tied parameters are not stored.
std::vector<StoredTensor> stored_tensors(const spec::ModelSpec& model);

// The name without the prefix that a file has or lacks depending on the class that wrote it:
// "transformer.h.0.ln_1.bias" and "h.0.ln_1.bias" are one.
std::string without_prefix(const std::string& name, Family family);

// Tensors that files may hold and that are no weights of ours: constant masks and frequencies, or the copy of a tied
// head.
bool is_redundant(const std::string& name, const spec::ModelSpec& model);

}  // namespace lockstep::checkpoint
