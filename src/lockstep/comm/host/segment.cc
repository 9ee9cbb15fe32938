#include "lockstep/comm/host/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"

namespace lockstep::comm::host {
namespace {

constexpr uint64_t kMagic = 0x314d4f43504b4c02;  // changes with the layout
constexpr int64_t kFullSizeGroups = 256;  // address space for so many groups of all ranks; smaller ones take less
constexpr int64_t kArenaSpace = int64_t{16} << 40;

int64_t records_offset() {
  return round_up(sizeof(Control), kPage);
}
int64_t arena_offset(int ranks) {
  return records_offset() + kFullSizeGroups * record_bytes(ranks);
}

int64_t arena_bytes(int ranks) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return round_up(std::min(memory, kArenaSpace / ranks), kPage);
}

char* map_pages(int descriptor, int64_t bytes) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (descriptor < 0 ? MAP_ANONYMOUS : 0);
  void* const base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (base == MAP_FAILED) {
    throw Unsupported(text("cannot map ", format_size(bytes), " of address space for the ranks' shared memory (",
                           std::strerror(errno), "): raise the limit on virtual memory (ulimit -v)"));
  }
  madvise(base, static_cast<size_t>(bytes), MADV_DONTDUMP);
  return static_cast<char*>(base);
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const Options& options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    throw InvalidArgument(text("ranks = ", options.ranks, ": a host runs 1 to ", kMaxRanks,
                               " ranks (nearest: ", std::clamp(options.ranks, 1, kMaxRanks), ")"));
  }
  const int64_t arenas = arena_offset(options.ranks);
  const int64_t arena = options.across_processes ? arena_bytes(options.ranks) : 0;
  const int64_t bytes = arenas + options.ranks * arena;
  int descriptor = -1;
  if (options.across_processes) {
    descriptor = memfd_create("lockstep", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, bytes) != 0) {
      const int error = errno;
      if (descriptor >= 0) close(descriptor);
      throw Unsupported(text("cannot create the ranks' shared memory (memfd_create: ", std::strerror(error),
                             "): this needs Linux 3.17 and room for one more file"));
    }
  }
  std::shared_ptr<Segment> segment(new Segment(map_pages(descriptor, bytes), bytes, descriptor));
  auto* const control = new (segment->base_) Control;
  control->world_size = options.ranks;
  control->launcher = options.across_processes ? getpid() : 0;
  control->segment_bytes = bytes;
  control->arena_offset = arenas;
  control->arena_bytes = arena;
  control->default_deadline_ms = options.default_deadline.count();
  control->records_end = records_offset();
  control->magic = kMagic;
  return segment;
}

std::shared_ptr<Segment> Segment::map(int descriptor) {
  struct stat status{};
  uint64_t magic = 0;
  const bool readable = fstat(descriptor, &status) == 0 && status.st_size >= static_cast<int64_t>(sizeof(Control)) &&
                        pread(descriptor, &magic, sizeof magic, offsetof(Control, magic)) == sizeof magic;
  if (!readable || magic != kMagic) {
    throw InvalidArgument(
        text("descriptor ", descriptor,
             " is not the shared memory of this version's launcher: start the program with the launcher "
             "of the same build, and let programs between them keep the descriptor open"));
  }
  std::shared_ptr<Segment> segment(new Segment(map_pages(descriptor, status.st_size), status.st_size, -1));
  close(descriptor);
  return segment;
}

Segment::~Segment() {
  munmap(base_, static_cast<size_t>(bytes_));
  if (descriptor_ >= 0) close(descriptor_);
}

bool Segment::reachable(const void* data, int64_t bytes) const {
  if (!across_processes()) return true;
  const char* const first = static_cast<const char*>(data);
  return first >= base_ + control().arena_offset && first + bytes <= base_ + bytes_;
}

uint64_t Segment::encode(const void* data) const {
  const auto address = reinterpret_cast<uint64_t>(data);
  return across_processes() ? address - reinterpret_cast<uint64_t>(base_) : address;
}

char* Segment::decode(uint64_t address) const {
  return across_processes() ? base_ + address : reinterpret_cast<char*>(address);
}

}  // namespace lockstep::comm::host
