#include "lockstep/checkpoint/weights.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/huggingface.h"
#include "lockstep/checkpoint/model_config.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/spec/plan.h"

namespace lockstep::checkpoint {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

using ByName = std::map<std::string, at::Tensor>;

ByName by_name(const std::vector<nn::Parameter>& parameters) {
  ByName tensors;
  for (const nn::Parameter& parameter : parameters) tensors.emplace(parameter.spec.name, parameter.tensor.detach());
  return tensors;
}

const at::Tensor& find(const ByName& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  LOCKSTEP_CHECK(found != tensors.end(), "the model lacks the parameter ", name);
  return found->second;
}

NamedTensor as_stored(const StoredTensor& stored, const ByName& tensors) {
  std::vector<at::Tensor> parts;
  for (const std::string& part : stored.parts) parts.push_back(find(tensors, part));
  const at::Tensor joined = parts.size() == 1 ? parts.front() : at::cat(parts);
  return {stored.name, stored.transposed ? joined.t() : joined};
}

// Consecutive tensors, as many as fit.
std::vector<std::vector<NamedTensor>> cut_into_shards(std::vector<NamedTensor> tensors, int64_t max_bytes) {
  std::vector<std::vector<NamedTensor>> shards;
  int64_t bytes = 0;
  for (NamedTensor& named : tensors) {
    const auto added = static_cast<int64_t>(named.tensor.nbytes());
    if (shards.empty() || bytes + added > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += added;
    shards.back().push_back(std::move(named));
  }
  return shards;
}

std::string shard_file(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void write_shards(const fs::path& folder, const std::vector<std::vector<NamedTensor>>& shards) {
  int64_t total_bytes = 0;
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shard_file(i, shards.size());
    write_safetensors(folder / file, shards[i]);
    for (const NamedTensor& named : shards[i]) {
      weight_map[named.name] = file;
      total_bytes += static_cast<int64_t>(named.tensor.nbytes());
    }
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  write_file(folder / kIndexFile, index.dump(2) + "\n");
}

// The files that an index names, each once.
std::set<std::string> files_of_index(const fs::path& index_path) {
  const Json index = Json::parse(read_file(index_path), /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw CorruptCheckpoint(text(index_path.string(), " has no \"weight_map\""));
  }
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).has_parent_path()) {
      throw CorruptCheckpoint(text(index_path.string(), ": the file of ", name, " cannot be ", file.dump()));
    }
    files.insert(file.get<std::string>());
  }
  return files;
}

std::set<std::string> weight_files(const fs::path& folder) {
  if (fs::exists(folder / kSingleFile)) return {kSingleFile};
  if (fs::exists(folder / kIndexFile)) return files_of_index(folder / kIndexFile);
  throw InvalidArgument(
      text("model.weights = \"", folder.string(), "\": the folder holds neither ", kSingleFile, " nor ", kIndexFile));
}

// Every weight in a folder's files by its name without prefix.
ByName read_weights(const fs::path& folder, const spec::ModelSpec& model) {
  const Family family = family_of(model);
  ByName weights;
  for (const std::string& file : weight_files(folder)) {
    if (!fs::exists(folder / file)) throw CorruptCheckpoint(text((folder / file).string(), " is missing"));
    for (const auto& [name, tensor] : read_safetensors(folder / file)) {
      if (is_redundant(name, model)) continue;
      if (!weights.emplace(without_prefix(name, family), tensor).second) {
        throw CorruptCheckpoint(text(folder.string(), " holds tensor ", name, " twice"));
      }
    }
  }
  return weights;
}

// Names what the files lack and what they have too much, all of it.
void check_names(const fs::path& folder, const ByName& weights, const std::vector<StoredTensor>& expected,
                 Family family) {
  std::vector<std::string> missing;
  std::set<std::string> unexpected;
  for (const auto& [name, tensor] : weights) unexpected.insert(name);
  for (const StoredTensor& stored : expected) {
    if (unexpected.erase(without_prefix(stored.name, family)) == 0) missing.push_back(stored.name);
  }
  if (missing.empty() && unexpected.empty()) return;
  std::string message = text(folder.string(), " is not of this model:");
  if (!missing.empty()) message += text(" lacks ", join(missing));
  if (!unexpected.empty()) message += text(missing.empty() ? "" : ";", " has besides ", join(unexpected));
  throw CorruptCheckpoint(message);
}

// Copies one tensor of a file into the parameters that it holds.
void load_stored(const fs::path& folder, const StoredTensor& stored, const at::Tensor& weight,
                 const std::vector<nn::Parameter>& parameters) {
  std::vector<const nn::Parameter*> parts;
  int64_t outputs = 0;
  for (const std::string& part : stored.parts) {
    const auto found =
        std::ranges::find_if(parameters, [&](const nn::Parameter& parameter) { return parameter.spec.name == part; });
    if (found == parameters.end()) return;  // of another stage
    parts.push_back(&*found);
    outputs += found->spec.shape[0];
  }
  std::vector<int64_t> expected = parts.front()->spec.shape;
  expected.front() = outputs;
  if (stored.transposed) std::reverse(expected.begin(), expected.end());
  if (weight.sizes() != expected) {
    throw CorruptCheckpoint(text(folder.string(), ": tensor ", stored.name, " has the shape [", join(weight.sizes()),
                                 "], the model needs [", join(expected), "]"));
  }
  const at::Tensor joined = stored.transposed ? weight.t() : weight;
  int64_t begin = 0;
  for (const nn::Parameter* part : parts) {
    const at::Tensor whole = joined.narrow(0, begin, part->spec.shape[0]);
    nn::without_padding(part->tensor, part->region).copy_(nn::part_of(whole, part->region));
    begin += part->spec.shape[0];
  }
}

}  // namespace

void save_weights(const fs::path& folder, const spec::ModelSpec& model, const std::vector<nn::Parameter>& parameters,
                  const SaveOptions& options) {
  const at::NoGradGuard no_grad;
  if (family_of(model) == Family::lockstep) {
    log::info(folder.string(), ": transformers has no class for this model, its weights keep lockstep's names");
  }
  const ByName tensors = by_name(parameters);
  std::vector<NamedTensor> stored;
  for (const StoredTensor& tensor : stored_tensors(model)) stored.push_back(as_stored(tensor, tensors));
  const std::string dtype = stored.front().tensor.scalar_type() == at::kDouble ? "float64" : "float32";
  const auto shards = cut_into_shards(std::move(stored), options.max_shard_bytes);

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InvalidArgument(text("cannot make the folder ", folder.string(), ": ", error.message()));
  write_file(folder / kConfigFile, to_config_json(model, dtype));
  // A reader takes the single file where there is one: an older one must not outlive new shards.
  if (shards.size() == 1) {
    write_safetensors(folder / kSingleFile, shards.front());
    fs::remove(folder / kIndexFile);
  } else {
    write_shards(folder, shards);
    fs::remove(folder / kSingleFile);
  }
}

void load_weights(const fs::path& folder, const spec::ModelSpec& model, const std::vector<nn::Parameter>& parameters) {
  const at::NoGradGuard no_grad;
  if (fs::exists(folder / kConfigFile)) spec::refuse(contradictions(model, read_model_spec(folder)));
  const Family family = family_of(model);
  const ByName weights = read_weights(folder, model);
  const std::vector<StoredTensor> expected = stored_tensors(model);
  check_names(folder, weights, expected, family);
  for (const StoredTensor& stored : expected) {
    load_stored(folder, stored, find(weights, without_prefix(stored.name, family)), parameters);
  }
}

spec::ModelSpec read_model_spec(const fs::path& folder) {
  const fs::path path = folder / kConfigFile;
  return parse_config_json(read_file(path), path.string());
}

}  // namespace lockstep::checkpoint
