// A file in memory, read-only: pages are read when touched and shared by the ranks of a host.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep::data {

class MappedFile {
 public:
  // throws InvalidArgument naming the path and the system's reason
  explicit MappedFile(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  size_t size_ = 0;
  std::shared_ptr<const std::byte> memory_;  // unmapped with the last copy
};

}  // namespace lockstep::data
