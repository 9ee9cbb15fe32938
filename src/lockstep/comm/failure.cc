#include "lockstep/comm/failure.h"

#include "lockstep/base/error.h"

namespace lockstep::comm {

void Failure::raise() const {
  switch (kind) {
    case Kind::peer_lost:
      throw PeerLost(message);
    case Kind::deadline_exceeded:
      throw DeadlineExceeded(message);
    case Kind::protocol_mismatch:
      throw ProtocolMismatch(message);
    case Kind::invalid_argument:
      throw InvalidArgument(message);
    case Kind::unsupported:
      throw Unsupported(message);
    case Kind::error:
      throw Error(message);
    case Kind::none:
    case Kind::internal:
      break;
  }
  throw InternalError(message);
}

Failure Failure::of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& e) {
    return {Kind::peer_lost, e.what()};
  } catch (const DeadlineExceeded& e) {
    return {Kind::deadline_exceeded, e.what()};
  } catch (const ProtocolMismatch& e) {
    return {Kind::protocol_mismatch, e.what()};
  } catch (const InvalidArgument& e) {
    return {Kind::invalid_argument, e.what()};
  } catch (const Unsupported& e) {
    return {Kind::unsupported, e.what()};
  } catch (const InternalError& e) {
    return {Kind::internal, e.what()};
  } catch (const Error& e) {
    return {Kind::error, e.what()};
  } catch (const std::exception& e) {
    return {Kind::internal, e.what()};
  } catch (...) {
    return {Kind::internal, "an exception of unknown type"};
  }
}

Failure Failure::during(std::string_view place, int world_rank) const {
  const std::string rank = text("rank ", world_rank, ": ");
  const std::string_view rest = std::string_view(message).substr(message.starts_with(rank) ? rank.size() : 0);
  return {kind, text(rank, "in ", place, ": ", rest)};
}

}  // namespace lockstep::comm
