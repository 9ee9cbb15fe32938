#include "lockstep/data/token_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::data {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

struct Variant {
  int32_t magic, version;
  int64_t token_bytes;
  const char* format;
};
constexpr std::array kVariants = {Variant{20240520, 1, 2, "tokens_u16"}, Variant{20240801, 7, 4, "tokens_u32"}};

constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);

int64_t bytes_of(spec::DataFormat format) {
  if (format == spec::DataFormat::tokens_u16) return 2;
  if (format == spec::DataFormat::tokens_u32) return 4;
  return 1;
}

template <class Token>
void widen(const std::byte* from, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    out[i] = token;
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, spec::DataFormat format)
    : path_(path.string()), file_(path), token_bytes_(bytes_of(format)), tokens_(file_.bytes()) {
  if (token_bytes_ > 1) skip_header();
  if (tokens_.size() % static_cast<size_t>(token_bytes_) != 0) {
    refuse(text(tokens_.size(), " bytes are no whole number of ", token_bytes_, "-byte tokens"));
  }
  size_ = static_cast<int64_t>(tokens_.size()) / token_bytes_;
}

void TokenFile::skip_header() {
  std::array<int32_t, 3> header{};  // magic, version, number of tokens
  if (tokens_.size() < sizeof header) return;
  std::memcpy(header.data(), tokens_.data(), sizeof header);
  for (const Variant& variant : kVariants) {
    if (header[0] != variant.magic) continue;
    if (variant.token_bytes != token_bytes_) {
      refuse(text("its header is of ", variant.token_bytes, "-byte tokens: set data.format = \"", variant.format, '"'));
    }
    if (header[1] != variant.version) {
      refuse(text("its header has version ", header[1], ", only ", variant.version, " is known"));
    }
    const int64_t promised = static_cast<int64_t>(kHeaderBytes) + header[2] * token_bytes_;
    if (header[2] < 0 || promised != static_cast<int64_t>(tokens_.size())) {
      refuse(text("its header promises ", header[2], " tokens, which is ", promised,
                  " bytes with the header; the file has ", tokens_.size()));
    }
    tokens_ = tokens_.subspan(kHeaderBytes);
    return;
  }
}

void TokenFile::read(int64_t offset, std::span<int64_t> out) const {
  LOCKSTEP_CHECK(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= size_, "tokens from ", offset, " of ",
                 size_);
  const std::byte* from = tokens_.data() + offset * token_bytes_;
  if (token_bytes_ == 1) return widen<uint8_t>(from, out);
  if (token_bytes_ == 2) return widen<uint16_t>(from, out);
  widen<uint32_t>(from, out);
}

void TokenFile::refuse(const std::string& why) const {
  throw InvalidArgument(text("data.path = ", path_, ": ", why));
}

}  // namespace lockstep::data
