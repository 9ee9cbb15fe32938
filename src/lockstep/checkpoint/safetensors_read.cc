#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_types.h"

namespace lockstep::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = sizeof(uint64_t);
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

// A whole file in memory, read-only.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0) fail(path);
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    ::close(descriptor);
    if (data_ == MAP_FAILED) fail(path);
  }
  ~Mapping() {
    if (size_ > 0) ::munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const char> bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path) {
    throw InvalidArgument(text("cannot read ", path.string(), ": ", std::strerror(errno)));
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

// What the header says of one tensor.
struct Entry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t begin, end;  // in the data part
};

// Turns a header into entries that lie in the file one after the other.
class HeaderReader {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Entry> read(std::span<const char> bytes, uint64_t& data_begin) const {
    uint64_t length = 0;
    if (bytes.size() < kLengthBytes) corrupt("is too short to hold a header");
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kMaxHeaderBytes || length > bytes.size() - kLengthBytes) {
      corrupt(text("says that its header has ", length, " bytes, but the file has ", bytes.size(),
                   ": truncated, or no safetensors file"));
    }
    data_begin = kLengthBytes + length;
    const Json header = Json::parse(bytes.begin() + kLengthBytes, bytes.begin() + static_cast<ptrdiff_t>(data_begin),
                                    /*callback=*/nullptr, /*allow_exceptions=*/false);
    if (!header.is_object()) corrupt("has a header that is not a JSON object");
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") entries.push_back(read_entry(name, value));
    }
    std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
    check_layout(entries, bytes.size() - data_begin);
    return entries;
  }

 private:
  [[noreturn]] void corrupt(const std::string& what) const { throw CorruptCheckpoint(text(file_, " ", what)); }
  [[noreturn]] void corrupt(const std::string& name, const std::string& what) const {
    corrupt(text("is damaged: tensor ", name, " ", what));
  }

  Entry read_entry(const std::string& name, const Json& value) const {
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
      corrupt(name, "lacks dtype, shape or data_offsets");
    }
    const std::vector<uint64_t> shape = numbers(name, value["shape"]), range = numbers(name, value["data_offsets"]);
    if (range.size() != 2 || range[0] > range[1]) corrupt(name, "has no valid byte range");
    const at::ScalarType type = read_type(name, value["dtype"]);
    uint64_t bytes = c10::elementSize(type);
    for (const uint64_t size : shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) corrupt(name, "has a shape too large for any file");
    }
    if (bytes != range[1] - range[0]) {
      corrupt(name, text("has ", range[1] - range[0], " bytes where its shape needs ", bytes));
    }
    return {name, type, {shape.begin(), shape.end()}, range[0], range[1]};
  }

  at::ScalarType read_type(const std::string& name, const Json& value) const {
    for (const auto& [type_name, type] : kSafetensorsTypes) {
      if (value == type_name) return type;
    }
    corrupt(name, text("has the unknown type ", value.dump()));
  }

  std::vector<uint64_t> numbers(const std::string& name, const Json& value) const {
    if (!value.is_array() || !std::ranges::all_of(value, [](const Json& n) { return n.is_number_unsigned(); })) {
      corrupt(name, "has a shape or byte range that is no list of whole numbers");
    }
    return value.get<std::vector<uint64_t>>();
  }

  void check_layout(const std::vector<Entry>& entries, uint64_t data_bytes) const {
    uint64_t end = 0;
    for (const Entry& entry : entries) {
      if (entry.begin < end) corrupt(entry.name, "overlaps the one before it");
      if (entry.begin > end) corrupt(entry.name, text("leaves ", entry.begin - end, " bytes unused before it"));
      if (entry.end > data_bytes) {
        corrupt(entry.name, text("ends ", entry.end - data_bytes, " bytes after the end of the file: truncated"));
      }
      end = entry.end;
    }
    if (end != data_bytes) corrupt(text("has ", data_bytes - end, " bytes that belong to no tensor"));
  }

  std::string file_;
};

// A view of the mapping, or a copy where the element type forbids the address.
at::Tensor view_of(const std::shared_ptr<Mapping>& mapping, const Entry& entry, uint64_t data_begin) {
  const char* data = mapping->bytes().data() + data_begin + entry.begin;
  const auto options = at::TensorOptions(entry.type);
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.type) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, entry.end - entry.begin);
    return copy;
  }
  return at::from_blob(const_cast<char*>(data), entry.shape, [mapping](void*) {}, options);
}

}  // namespace

std::vector<NamedTensor> read_safetensors(const std::filesystem::path& path) {
  const auto mapping = std::make_shared<Mapping>(path);
  std::vector<NamedTensor> tensors;
  uint64_t data_begin = 0;
  for (const Entry& entry : HeaderReader(path.string()).read(mapping->bytes(), data_begin)) {
    tensors.push_back({entry.name, view_of(mapping, entry, data_begin)});
  }
  return tensors;
}

}  // namespace lockstep::checkpoint
