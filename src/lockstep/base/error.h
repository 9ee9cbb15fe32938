// The errors a user can meet, by type. Messages are one line, name the rank where there is one, and say what to do.
// Each type has the exit code that the command line ends with (docs/cli.md).
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep {

// Also thrown itself: a run that cannot go on, for a reason that is nobody's call (a disk that is full, a loss that is
// no number).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual int exit_code() const { return 1; }
  virtual const char* type_name() const { return "Error"; }
};

#define LOCKSTEP_ERROR_TYPE(Name, code)      \
  class Name : public Error {                \
   public:                                   \
    using Error::Error;                      \
    int exit_code() const override {         \
      return code;                           \
    }                                        \
    const char* type_name() const override { \
      return #Name;                          \
    }                                        \
  };

// The user's mistake: names field, value, rule and the nearest values that work.
LOCKSTEP_ERROR_TYPE(InvalidArgument, 2)
// Something that this build or this machine cannot do, or not yet; says which and what can be done instead.
LOCKSTEP_ERROR_TYPE(Unsupported, 2)
// A rank died or left while others needed it.
LOCKSTEP_ERROR_TYPE(PeerLost, 3)
// A rank did not arrive in time (stopped, or in another call).
LOCKSTEP_ERROR_TYPE(DeadlineExceeded, 3)
// Ranks made different calls at the same place of one group's order.
LOCKSTEP_ERROR_TYPE(ProtocolMismatch, 3)
// A file that does not hold what it says.
LOCKSTEP_ERROR_TYPE(CorruptCheckpoint, 4)
// An error of ours: please report it.
LOCKSTEP_ERROR_TYPE(InternalError, 70)

#undef LOCKSTEP_ERROR_TYPE

// A rule broken by a field's value, as one line: "parallel.zero = 4: must be 0, 1, 2 or 3 (nearest: 3)".
struct Problem {
  std::string field;
  std::string value;
  std::string rule;
  std::string nearest;  // empty: none to offer
  std::string message() const;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace lockstep

// For our own bugs, never for a user's mistake; always on.
#define LOCKSTEP_CHECK(condition, ...)                                                         \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::lockstep::check_failed(#condition, __FILE__, __LINE__, ::lockstep::text(__VA_ARGS__)); \
  } while (false)
