#include "lockstep/comm/call_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/comm/failure.h"

namespace lockstep::comm {
namespace {

// As it travels.
struct Fingerprint {
  Operation operation = Operation::barrier;
  DataType type = DataType::u8;
  Reduction reduction = Reduction::sum;
  bool uneven = false;
  int32_t peer = -1;
  int64_t count = 0;
  uint64_t detail_hash = 0;
  char tag[40] = {};  // cut to what fits
};

Fingerprint fingerprint_of(const CallInfo& call) {
  Fingerprint print{.operation = call.operation,
                    .type = call.type,
                    .reduction = call.reduction,
                    .uneven = call.uneven,
                    .peer = call.peer,
                    .count = call.count,
                    .detail_hash = call.detail_hash};
  call.tag.copy(print.tag, sizeof(print.tag) - 1);
  return print;
}

CallInfo call_of(const Fingerprint& print) {
  return {.operation = print.operation,
          .type = print.type,
          .reduction = print.reduction,
          .uneven = print.uneven,
          .peer = print.peer,
          .count = print.count,
          .detail_hash = print.detail_hash,
          .tag = print.tag};
}

std::vector<int32_t> world_ranks_of(const ProcessGroup& group) {
  std::vector<int32_t> ranks;
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank(r));
  return ranks;
}

std::unique_ptr<ProcessGroup> side_group(ProcessGroup& host, std::string_view what) {
  std::vector<int> all(static_cast<size_t>(host.size()));
  std::iota(all.begin(), all.end(), 0);
  std::unique_ptr<ProcessGroup> group = host.split(all, text(host.name(), ": ", what));
  group->set_recorder(nullptr);
  return group;
}

template <class Element>
Buffer buffer_of(std::vector<Element>& elements, size_t begin, size_t count, std::shared_ptr<const void> owner) {
  return {.data = elements.data() + begin,
          .count = static_cast<int64_t>(count * sizeof(Element)),
          .type = DataType::u8,
          .keep_alive = std::move(owner)};
}

}  // namespace

struct CallCheck::Group {
  std::string name;
  std::vector<int32_t> world_ranks;
  int rank = 0;
};

struct CallCheck::Pending::State {
  CallInfo call;
  std::shared_ptr<const Group> group;
  uint64_t number = 0;
  std::vector<int> members;         // whose calls are compared
  std::vector<Fingerprint> prints;  // of each of them
  std::vector<int64_t> counts;      // of an uneven all_to_all: every rank's, sent and received
  std::vector<Work> works;

  int32_t world_rank(int member) const { return group->world_ranks[static_cast<size_t>(member)]; }
  bool is_message() const { return comm::is_message(call.operation); }
  std::string place() const {
    return text(describe(call, group->world_ranks), " (", is_message() ? "message " : "call ", number, " on group '",
                group->name, "')");
  }
  size_t own() const { return static_cast<size_t>(std::ranges::find(members, group->rank) - members.begin()); }

  void await() const {
    for (const Work& work : works) {
      try {
        work.wait();
      } catch (...) {
        Failure::of(std::current_exception()).during(place(), world_rank(group->rank)).raise();
      }
      if (!agree()) raise_mismatch();  // what follows is only there if the first, the fingerprints, agree
    }
  }

  bool agree() const {
    return std::ranges::all_of(prints, [&](const Fingerprint& print) {
      CallInfo theirs = call_of(print);
      if (is_message()) {  // the two ends differ in these by nature
        theirs.operation = call.operation;
        theirs.peer = call.peer;
      }
      return theirs.same_call(call);
    });
  }

  // What each rank of an uneven all_to_all sends to each is what that one expects from it.
  bool pairs_agree() const {
    const size_t size = members.size();
    for (size_t from = 0; from < size; ++from) {
      for (size_t to = 0; to < size; ++to) {
        if (counts[2 * size * from + to] != counts[2 * size * to + size + from]) return false;
      }
    }
    return true;
  }

  [[noreturn]] void raise_mismatch() const {
    RanksByCall ranks_by_call;
    for (size_t i = 0; i < members.size(); ++i) {
      const CallInfo theirs = i == own() ? call : call_of(prints[i]);
      ranks_by_call[describe(theirs, group->world_ranks)].push_back(world_rank(members[i]));
    }
    throw ProtocolMismatch(
        text("rank ", world_rank(group->rank), ": ranks disagree on ", is_message() ? "message " : "call ", number,
             " of group '", group->name, "': ", who_made_what(ranks_by_call),
             is_message() ? ". Both sides of a message must give the same type, count and tag, in the same order"
                          : ". Every rank of a group must make the same calls in the same order",
             call.counts_differ_by_rank() ? ", and receive from each what that one sends" : ""));
  }
};

bool CallCheck::Pending::done() const {
  return std::ranges::all_of(state_->works, [](const Work& work) { return work.done(); });
}

void CallCheck::Pending::conclude() const {
  state_->await();
  if (!state_->counts.empty() && !state_->pairs_agree()) state_->raise_mismatch();
}

std::string CallCheck::Pending::place() const {
  return state_->place();
}

CallCheck::CallCheck(ProcessGroup& host)
    : host_(host),
      group_(std::make_shared<const Group>(host.name(), world_ranks_of(host), host.rank())),
      calls_(side_group(host, "calls")) {}

CallCheck::~CallCheck() = default;

CallCheck::Pending CallCheck::start(const CallInfo& call, std::chrono::milliseconds deadline) {
  return is_message(call.operation) ? start_message(call, deadline) : start_collective(call, deadline);
}

CallCheck::Pending CallCheck::start_collective(const CallInfo& call, std::chrono::milliseconds deadline) {
  const auto size = static_cast<size_t>(host_.size());
  auto state = std::make_shared<Pending::State>();
  *state = {.call = call,
            .group = group_,
            .number = ++number_,
            .members = std::vector<int>(size),
            .prints = std::vector<Fingerprint>(size)};
  std::iota(state->members.begin(), state->members.end(), 0);
  const size_t own = state->own();
  state->prints[own] = fingerprint_of(call);
  state->works.push_back(calls_->all_gather_async(buffer_of(state->prints, own, 1, state),
                                                  buffer_of(state->prints, 0, size, state), {.deadline = deadline}));
  if (call.counts_differ_by_rank()) {
    state->counts.resize(2 * size * size);
    std::ranges::copy(call.counts, state->counts.begin() + static_cast<int64_t>(2 * size * own));
    state->works.push_back(calls_->all_gather_async(buffer_of(state->counts, 2 * size * own, 2 * size, state),
                                                    buffer_of(state->counts, 0, 2 * size * size, state),
                                                    {.deadline = deadline}));
  }
  return Pending(std::move(state));
}

CallCheck::Pending CallCheck::start_message(const CallInfo& call, std::chrono::milliseconds deadline) {
  if (senders_ == nullptr) {
    senders_ = side_group(host_, "what is sent");
    receivers_ = side_group(host_, "what is awaited");
  }
  const bool sends = call.operation == Operation::send;
  auto state = std::make_shared<Pending::State>();
  *state = {.call = call,
            .group = group_,
            .number = ++messages_[{call.peer, sends}],
            .members = {host_.rank(), call.peer},
            .prints = std::vector<Fingerprint>(2)};
  state->prints[0] = fingerprint_of(call);
  ProcessGroup& own_side = sends ? *senders_ : *receivers_;
  ProcessGroup& other_side = sends ? *receivers_ : *senders_;
  state->works.push_back(
      other_side.receive_async(buffer_of(state->prints, 1, 1, state), call.peer, {.deadline = deadline}));
  state->works.push_back(own_side.send_async(buffer_of(state->prints, 0, 1, state), call.peer, {.deadline = deadline}));
  return Pending(std::move(state));
}

}  // namespace lockstep::comm
