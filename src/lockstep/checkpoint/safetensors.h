// The safetensors file format: 8 bytes of header length, a JSON header of names, types, shapes and byte ranges, the
// bytes.
//   source   https://github.com/huggingface/safetensors, "Format"
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The tensors of a file in the order of their bytes, given out once everything that its header says is checked. They
// are views of the mapped file, which lives as long as any of them: not to be written to.
//   throws  CorruptCheckpoint naming the file, and the tensor where there is one; InvalidArgument if it cannot be
//   opened
std::vector<NamedTensor> read_safetensors(const std::filesystem::path& path);

// Writes all or nothing, one tensor after the other without a second copy of them all. The first begins on a 64-byte
// boundary of the file.
//   throws  InvalidArgument naming the file and the reason (disk full, no permission); nothing is left behind
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lockstep::checkpoint
