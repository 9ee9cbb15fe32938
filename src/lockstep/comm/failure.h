// An error as a value: kept by calls nobody waits for, passed between ranks, and thrown as the typed error it is.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace lockstep::comm {

struct Failure {
  enum class Kind : uint32_t {
    none,
    peer_lost,
    deadline_exceeded,
    protocol_mismatch,
    invalid_argument,
    unsupported,
    internal,
    error  // any other
  };

  Kind kind = Kind::none;
  std::string message;

  explicit operator bool() const { return kind != Kind::none; }
  // Throws a new object each time, so that threads never share one.
  [[noreturn]] void raise() const;
  static Failure of(std::exception_ptr error);
  // The same, of a call during which it was noticed: "rank 0: in barrier (call 3 on group 'dp'): ...".
  Failure during(std::string_view place, int world_rank) const;
};

}  // namespace lockstep::comm
