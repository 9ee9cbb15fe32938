#include "lockstep/data/document_index.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::data {

DocumentIndex::DocumentIndex(const std::vector<int64_t>& sizes) {
  ends_.reserve(sizes.size());
  for (const int64_t size : sizes) {
    if (size < 0 || size > std::numeric_limits<int64_t>::max() - total()) {
      throw InvalidArgument(text("document ", documents(), " has ", size, " tokens, ", total(),
                                 " before it: sizes must not be negative and must sum to less than 2^63"));
    }
    ends_.push_back(total() + size);
  }
}

int64_t DocumentIndex::document_of(int64_t offset) const {
  LOCKSTEP_CHECK(offset >= 0 && offset < total(), "offset ", offset, " of ", total());
  return std::ranges::upper_bound(ends_, offset) - ends_.begin();
}

}  // namespace lockstep::data
