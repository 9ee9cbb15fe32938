#include "lockstep/data/corpus.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kSyntheticTokens = int64_t{1} << 24;
constexpr int64_t kTokensCheckedAtOpen = int64_t{1} << 28;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with(".");
}

std::vector<fs::path> files_below(const fs::path& folder, spec::DataFormat format) {
  std::vector<fs::path> result;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && (format == spec::DataFormat::bytes || entry->path().extension() == ".bin")) {
      result.push_back(entry->path());
    }
  }
  std::ranges::sort(result);
  return result;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InvalidArgument(text("data.path = ", path, ": ", why));
}

std::vector<TokenFile> open_path(const std::string& path, spec::DataFormat format) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  std::vector<TokenFile> files;
  if (!fs::exists(status)) refuse(path, "no such file or folder (paths are relative to the working directory)");
  try {
    if (fs::is_directory(status)) {
      for (const fs::path& file : files_below(path, format)) files.emplace_back(file, format);
    } else if (fs::is_regular_file(status)) {
      files.emplace_back(path, format);
    } else {
      refuse(path, "is neither a file nor a folder");
    }
  } catch (const fs::filesystem_error& failure) {
    refuse(path, failure.code().message());
  }
  if (std::ranges::all_of(files, [](const TokenFile& file) { return file.size() == 0; })) {
    refuse(path, fs::is_directory(status) ? "holds no file with tokens in it" : "the file is empty");
  }
  return files;
}

}  // namespace

Corpus::Corpus(const spec::RunPlan& plan)
    : vocab_(plan.model.vocab), synthetic_(static_cast<uint64_t>(plan.train.seed), "synthetic tokens") {
  if (plan.data.format == spec::DataFormat::synthetic) {
    synthetic_size_ = kSyntheticTokens;
    return;
  }
  for (const std::string& path : plan.data.path) {
    for (TokenFile& file : open_path(path, plan.data.format)) files_.push_back(std::move(file));
  }
  std::vector<int64_t> sizes;
  for (const TokenFile& file : files_) sizes.push_back(file.size());
  index_ = DocumentIndex(sizes);
  if (plan.data.format != spec::DataFormat::bytes) check_beginning();
}

void Corpus::check_beginning() const {
  std::vector<int64_t> tokens(1 << 16);
  const int64_t end = std::min(size(), kTokensCheckedAtOpen);
  for (int64_t offset = 0; offset < end; offset += static_cast<int64_t>(tokens.size())) {
    tokens.resize(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(tokens.size()), end - offset)));
    read(offset, tokens);
  }
}

void Corpus::read(int64_t offset, std::span<int64_t> out) const {
  LOCKSTEP_CHECK(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= size(), "tokens from ", offset, " of ",
                 size());
  if (synthetic_size_ > 0) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int64_t>(synthetic_.below(static_cast<uint64_t>(offset) + i, static_cast<uint64_t>(vocab_)));
    }
  } else {
    read_files(offset, out);
  }
}

void Corpus::read_files(int64_t offset, std::span<int64_t> out) const {
  while (!out.empty()) {
    const int64_t document = index_.document_of(offset);
    const TokenFile& file = files_[static_cast<size_t>(document)];
    const int64_t here = std::min<int64_t>(static_cast<int64_t>(out.size()), index_.end(document) - offset);
    const int64_t offset_in_file = offset - index_.begin(document);
    const std::span<int64_t> part = out.first(static_cast<size_t>(here));
    file.read(offset_in_file, part);
    const auto wrong = std::ranges::find_if(part, [&](int64_t token) { return token >= vocab_; });
    if (wrong != part.end()) {
      refuse(file.path(), text("token ", *wrong, " at position ", offset_in_file + (wrong - part.begin()),
                               " is outside of model.vocab = ", vocab_, "; is data.format right?"));
    }
    offset += here;
    out = out.subspan(static_cast<size_t>(here));
  }
}

std::string Corpus::describe() const {
  if (synthetic_size_ > 0) return text(size(), " synthetic tokens");
  return text(files_.size(), files_.size() == 1 ? " file, " : " files, ", size(), " tokens");
}

}  // namespace lockstep::data
