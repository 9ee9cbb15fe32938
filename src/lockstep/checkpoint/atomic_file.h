// Writing a file all or nothing: into a file beside it, which takes its name once it is complete and on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace lockstep::checkpoint {

class AtomicFile {
 public:
  // throws  InvalidArgument naming the file and the system's reason, as every member does: disk full, no permission,
  // ...
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // removes what was not committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, int64_t bytes);
  void commit();

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

// Replaces the content of a file, all or nothing.
void write_file(const std::filesystem::path& path, std::string_view content);

// The content of a file. throws InvalidArgument naming it when it cannot be read
std::string read_file(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
