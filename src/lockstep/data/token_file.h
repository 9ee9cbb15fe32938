// One file as a sequence of tokens.
//   bytes        every byte is a token
//   tokens_u16   little-endian 16-bit tokens: raw (nanoGPT), or behind llm.c's header
//   tokens_u32   little-endian 32-bit tokens: raw, or behind the header of llm.c's Llama-3 files
// llm.c's header is 256 int32: magic, version, number of tokens, zeros.
//   source   github.com/karpathy/llm.c, dev/data/data_common.py; github.com/karpathy/nanoGPT, data/*/prepare.py
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/data/mapped_file.h"
#include "lockstep/spec/plan.h"

namespace lockstep::data {

class TokenFile {
 public:
  // throws InvalidArgument: unreadable, no whole number of tokens, or a header that does not describe the file
  TokenFile(const std::filesystem::path& path, spec::DataFormat format);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // tokens

  // Fills `out` with the tokens from `offset` on, all of which the file holds.
  void read(int64_t offset, std::span<int64_t> out) const;

 private:
  void skip_header();
  [[noreturn]] void refuse(const std::string& why) const;

  std::string path_;
  MappedFile file_;
  int64_t token_bytes_ = 1;
  std::span<const std::byte> tokens_;
  int64_t size_ = 0;
};

}  // namespace lockstep::data
