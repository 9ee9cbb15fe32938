// What ranks tell one another beside their calls: that a group failed, that a member left it, which call they are in,
// that they end. Whoever waits reads the notices, so a rank that computes answers later, and one that is stopped never.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/call_info.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/mpi/peers.h"
#include "lockstep/comm/mpi/session.h"

namespace lockstep::comm::mpi {

// Who a group is: the same for every member, different from every other group's.
struct GroupIdentity {
  uint64_t key = 0;
  std::string name;
  std::vector<int32_t> world_ranks;
  int rank = 0;  // mine

  int size() const { return static_cast<int>(world_ranks.size()); }
  int world_rank_of(int member) const { return world_ranks[static_cast<size_t>(member)]; }
  int world_rank() const { return world_rank_of(rank); }
  // Members but this one.
  std::vector<int> others() const {
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
      if (member != rank) members.push_back(member);
    }
    return members;
  }
};

// The call that an error is about.
struct Place {
  CallInfo call;
  std::string_view kind = "call";  // or "message": they are numbered apart
  uint64_t number = 0;
  bool announced = false;  // by those whose data is awaited: they have made the call, whatever they did after it
};

// "all_reduce(sum) of 4 f32 (call 3 on group 'dp')"
std::string text_of(const Place& place, const GroupIdentity& group);

// Why a group cannot go on.
struct GroupFailure {
  Failure failure;
  int origin = -1;  // the world rank that found out
  int lost = -1;    // whom a peer_lost is about, else -1
};

class Board {
 public:
  Board(Session& session, const Peers& peers);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Reads what has come and answers questions. Never waits.
  void service();
  // Changes whenever a notice came.
  uint64_t changes() const { return changes_.load(); }

  // The first failure wins; every other member is told.
  void fail(const GroupIdentity& group, const GroupFailure& failure);
  std::optional<GroupFailure> failure_of(const GroupIdentity& group) const;
  //   calls  of collectives, that this rank made in the group: what it sent for them arrives, however slowly
  void depart(const GroupIdentity& group, uint64_t calls) noexcept;
  // The calls of a member that has left; none while it is there.
  std::optional<uint64_t> departed_after(const GroupIdentity& group, int member) const;

  // Why that world rank will make no more calls; empty while it may.
  std::string end_of(int world_rank) const;
  // Whether it ended otherwise than well.
  bool lost(int world_rank) const;

  // "rank 0 is in barrier (call 3 on group 'dp'); rank 1 is in no call": asks every rank that runs, and waits a little.
  std::string calls_of_every_rank();

  // Tells all ranks that this one ends. If it ends well, waits until all do.
  //   returns  whether all have ended well
  bool say_goodbye(bool ends_well, double longest_s) noexcept;

  // Makes a call visible to who asks, for as long as it lives.
  class Entry {
   public:
    Entry(Board& board, const Place& place, const GroupIdentity& group);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Board& board_;
    std::pair<const Place*, const GroupIdentity*> entry_;
  };

 private:
  enum class Kind : uint32_t { failed, departed, question, answer, ended_well, ended_badly };
  struct Notice {  // as it travels
    Kind kind = Kind::question;
    Failure::Kind failure = Failure::Kind::none;
    int32_t from = -1, lost = -1;
    uint64_t group = 0;  // or the number of the question
    uint64_t calls = 0;  // of a departed member
    char text[1400] = {};
  };
  struct Sent {
    std::shared_ptr<Notice> notice;
    Pending pending;
  };
  struct Rank {
    std::string last_words;  // of a call that failed
    bool ended_well = false, ended_badly = false;
    std::string answer;
    uint64_t answered = 0;
  };

  // These hold the lock.
  void service_locked();
  void handle(const Notice& notice);
  void post(int world_rank, const Notice& notice);
  std::string own_calls() const;
  bool has_ended(int world_rank) const;

  std::string answer_of(int world_rank) const;
  void flush(double longest_s);

  Session& session_;
  const Peers& peers_;
  mutable std::mutex mutex_;
  std::shared_ptr<Notice> incoming_;
  Pending receiving_;
  std::deque<Sent> sent_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, GroupFailure> failures_;                // by group
  std::map<std::pair<uint64_t, int>, uint64_t> departures_;  // group and rank: calls
  std::vector<std::pair<const Place*, const GroupIdentity*>> entries_;
  uint64_t questions_ = 0;
  std::atomic<uint64_t> changes_{0};
};

}  // namespace lockstep::comm::mpi
