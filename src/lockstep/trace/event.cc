#include "lockstep/trace/event.h"

#include <algorithm>

namespace lockstep::trace {

void Event::set_name(std::string_view name) {
  const size_t length = std::min(name.size(), kNameCapacity - 1);
  std::copy_n(name.data(), length, name_bytes.data());
  name_bytes[length] = '\0';
}

}  // namespace lockstep::trace
