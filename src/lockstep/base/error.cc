#include "lockstep/base/error.h"

namespace lockstep {

std::string Problem::message() const {
  return text(field, " = ", value, ": ", rule, nearest.empty() ? "" : " (nearest: ", nearest,
              nearest.empty() ? "" : ")");
}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError(text("internal error: ", condition, " is false at ", file, ":", line, message.empty() ? "" : ": ",
                           message, "; please report this"));
}

}  // namespace lockstep
