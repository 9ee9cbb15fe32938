#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/call_info.h"
#include "lockstep/comm/shared_memory/shared_memory.h"

namespace lockstep::comm {
namespace {

// A socket that closes itself.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

Socket make_socket() {
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0)
    throw Unsupported(text("cannot open a socket for meeting the other ranks: ", std::strerror(errno)));
  return Socket(descriptor);
}

// In the abstract name space, so that nothing is left behind. It belongs to this user and this network name space.
struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};
Address address_of(const Meeting& meeting) {
  const std::string name = text("lockstep-", getuid(), "-", hash_of(meeting.name));
  Address address;
  address.socket.sun_family = AF_UNIX;
  std::memcpy(address.socket.sun_path + 1, name.data(), name.size());  // after a zero
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool same_user(const Socket& peer) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == getuid();
}

void send_descriptor(const Socket& to, int descriptor) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  sendmsg(to.get(), &message, MSG_NOSIGNAL);  // who has died meanwhile is noticed as every rank is
}

// -1: the other side has ended.
int receive_descriptor(const Socket& from) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(from.get(), &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

[[noreturn]] void raise_missing(const Meeting& meeting, const std::string& ranks) {
  throw DeadlineExceeded(text("rank ", meeting.rank, ": waited ", meeting.deadline.count() / 1000.0, " s for ", ranks,
                              " to meet on this host; see whether they were started, and on this host"));
}

// Rank 0: gives the memory to each other rank, once.
int invite(const Meeting& meeting) {
  const SharedMemoryWorld world({.ranks = std::max(meeting.ranks, meeting.world_size), .deadline = meeting.deadline});
  const Address address = address_of(meeting);
  const Socket listening = make_socket();
  if (bind(listening.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0 ||
      listen(listening.get(), meeting.ranks) != 0) {
    throw InvalidArgument(text("rank 0: another job meets on this host as ", meeting.name, " (", std::strerror(errno),
                               "); give the two different ports or names"));
  }
  std::set<int> missing;
  for (int rank = 1; rank < meeting.ranks; ++rank) missing.insert(rank);
  const double until_s = now_s() + std::chrono::duration<double>(meeting.deadline).count();
  while (!missing.empty()) {
    pollfd waiting{listening.get(), POLLIN, 0};
    const double left_s = until_s - now_s();
    if (left_s <= 0 || poll(&waiting, 1, static_cast<int>(left_s * 1000) + 1) == 0) {
      const std::vector<int> ranks(missing.begin(), missing.end());
      raise_missing(meeting, text(ranks.size() > 1 ? "ranks " : "rank ", join(ranks)));
    }
    const Socket peer(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int32_t rank = -1;
    if (peer.get() < 0 || !same_user(peer) || recv(peer.get(), &rank, sizeof rank, MSG_WAITALL) != sizeof rank)
      continue;
    if (missing.erase(rank) == 0) {
      throw InvalidArgument(text("rank 0: two processes came as rank ", rank, " of ", meeting.ranks));
    }
    send_descriptor(peer, world.descriptor());
  }
  return fcntl(world.descriptor(), F_DUPFD_CLOEXEC, 0);
}

int accept_invitation(const Meeting& meeting) {
  const Address address = address_of(meeting);
  const double until_s = now_s() + std::chrono::duration<double>(meeting.deadline).count();
  while (now_s() < until_s) {
    const Socket peer = make_socket();
    const bool connected = connect(peer.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) == 0;
    const int32_t rank = meeting.rank;
    if (connected && same_user(peer) && send(peer.get(), &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank) {
      const int descriptor = receive_descriptor(peer);
      if (descriptor >= 0) return descriptor;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  raise_missing(meeting, "rank 0");
}

}  // namespace

JoinedWorld meet_on_host(const Meeting& meeting) {
  const int descriptor = meeting.rank == 0 ? invite(meeting) : accept_invitation(meeting);
  return join_shared_memory_world(descriptor, meeting.world_size > 0 ? meeting.world_rank : meeting.rank,
                                  /*watch=*/true);
}

}  // namespace lockstep::comm
