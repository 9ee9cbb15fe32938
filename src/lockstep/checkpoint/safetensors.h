// The safetensors file format: 8 bytes of header length, a JSON header of names, types, shapes and byte ranges, the
// bytes.
//   source   https://github.com/huggingface/safetensors#format
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// A file opened for reading. Everything the header says is checked before any tensor is given out.
class SafetensorsFile {
 public:
  // throws  CorruptCheckpoint naming the file, and the tensor where there is one; InvalidArgument if it cannot be
  // opened
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }

  // A view of the mapped file, which lives as long as any of its tensors. Not to be written to.
  at::Tensor tensor(const std::string& name) const;

 private:
  std::vector<std::string> names_;  // in the order of their bytes
  std::map<std::string, at::Tensor> tensors_;
};

// Writes all or nothing: to a file beside `path`, renamed when complete. Tensors begin on 64-byte boundaries of the
// file.
//   throws  Error naming the file and the reason (disk full, no permission); nothing is left behind
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Replaces a file's content, all or nothing.
void write_file(const std::filesystem::path& path, const std::string& content);

}  // namespace lockstep::checkpoint
