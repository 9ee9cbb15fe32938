#include "lockstep/comm/share_text.h"

namespace lockstep::comm {

std::string shared_text(ProcessGroup& group, std::string text, int root, std::string_view tag) {
  auto length = static_cast<int64_t>(text.size());
  group.broadcast({.data = &length, .count = 1, .type = DataType::i64}, root, {.tag = tag});
  text.resize(static_cast<size_t>(length));
  group.broadcast({.data = text.data(), .count = length, .type = DataType::u8}, root, {.tag = tag});
  return text;
}

}  // namespace lockstep::comm
