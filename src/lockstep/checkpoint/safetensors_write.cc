#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_types.h"

namespace lockstep::checkpoint {

namespace {

std::string_view type_name(const NamedTensor& named) {
  for (const auto& [name, type] : kSafetensorsTypes) {
    if (type == named.tensor.scalar_type()) return name;
  }
  throw Unsupported(text("tensor ", named.name, ": safetensors has no type for ", named.tensor.scalar_type()));
}

// Header length and header, padded with spaces so that the data begins on a boundary.
std::string make_header(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    const int64_t end = offset + static_cast<int64_t>(named.tensor.nbytes());
    header[named.name] = {
        {"dtype", type_name(named)}, {"shape", named.tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string json = header.dump();
  constexpr int64_t kLengthBytes = sizeof(uint64_t);
  const int64_t padded = round_up(kLengthBytes + static_cast<int64_t>(json.size()), kAlignmentBytes) - kLengthBytes;
  json.resize(static_cast<size_t>(padded), ' ');
  const auto length = static_cast<uint64_t>(padded);
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  const at::NoGradGuard no_grad;
  const std::string header = make_header(tensors, metadata);
  AtomicFile file(path);
  file.write(header.data(), static_cast<int64_t>(header.size()));
  for (const NamedTensor& named : tensors) {
    const at::Tensor bytes = named.tensor.to(at::kCPU).contiguous();
    file.write(bytes.const_data_ptr(), static_cast<int64_t>(bytes.nbytes()));
  }
  file.commit();
}

}  // namespace lockstep::checkpoint
