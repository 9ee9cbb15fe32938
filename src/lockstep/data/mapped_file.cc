#include "lockstep/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::data {

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw InvalidArgument(text("data.path = ", path.string(), ": cannot be read: ", std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(path);
  const std::shared_ptr<void> closer(nullptr, [descriptor](void*) { close(descriptor); });
  struct stat status{};
  if (fstat(descriptor, &status) != 0) refuse(path);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;  // nothing to map
  void* memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) refuse(path);
  memory_ = std::shared_ptr<const std::byte>(
      static_cast<const std::byte*>(memory),
      [size = size_](const std::byte* mapped) { munmap(const_cast<std::byte*>(mapped), size); });
}

}  // namespace lockstep::data
