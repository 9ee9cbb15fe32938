// Where documents lie when they are read one after another. Made from sizes alone, in 64 bits throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::data {

class DocumentIndex {
 public:
  DocumentIndex() = default;

  // Sizes in tokens. throws InvalidArgument when one is negative or their sum does not fit in 63 bits
  explicit DocumentIndex(const std::vector<int64_t>& sizes);

  int64_t documents() const { return static_cast<int64_t>(ends_.size()); }
  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t begin(int64_t document) const { return document == 0 ? 0 : end(document - 1); }
  int64_t end(int64_t document) const { return ends_.at(static_cast<size_t>(document)); }

  // The document that holds the token at `offset`, which is from 0 to total() - 1.
  int64_t document_of(int64_t offset) const;

 private:
  std::vector<int64_t> ends_;
};

}  // namespace lockstep::data
