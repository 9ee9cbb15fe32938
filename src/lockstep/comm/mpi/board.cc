#include "lockstep/comm/mpi/board.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"

namespace lockstep::comm::mpi {
namespace {

constexpr int kTag = 0;
constexpr int kAnyone = -1;
constexpr double kAnswersTake_s = 0.3;
constexpr double kSendingTakes_s = 0.3;

template <size_t n>
void set_text(char (&to)[n], std::string_view from) {
  const size_t length = std::min(from.size(), n - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace

std::string text_of(const Place& place, const GroupIdentity& group) {
  return text(describe(place.call, group.world_ranks), " (", place.kind, " ", place.number, " on group '", group.name,
              "')");
}

Board::Entry::Entry(Board& board, const Place& place, const GroupIdentity& group)
    : board_(board), entry_(&place, &group) {
  const std::lock_guard lock(board_.mutex_);
  board_.entries_.push_back(entry_);
}

Board::Entry::~Entry() {
  const std::lock_guard lock(board_.mutex_);
  std::erase(board_.entries_, entry_);
}

Board::Board(Session& session, const Peers& peers)
    : session_(session),
      peers_(peers),
      incoming_(std::make_shared<Notice>()),
      receiving_(session.receive(Channel::notices, kAnyone, kTag, incoming_.get(), sizeof(Notice))),
      ranks_(static_cast<size_t>(session.size())) {}

Board::~Board() {
  session_.keep_for_ever(incoming_);
  session_.give_up(receiving_);
  for (Sent& sent : sent_) session_.keep_for_ever(std::move(sent.notice));
}

void Board::service() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) service_locked();  // else another thread is at it
}

void Board::service_locked() {
  while (session_.test(receiving_)) {
    handle(*incoming_);
    receiving_ = session_.receive(Channel::notices, kAnyone, kTag, incoming_.get(), sizeof(Notice));
    changes_.fetch_add(1);
  }
  std::erase_if(sent_, [this](Sent& sent) { return session_.test(sent.pending); });
}

void Board::handle(const Notice& notice) {
  Rank& from = ranks_[static_cast<size_t>(notice.from)];
  switch (notice.kind) {
    case Kind::failed:
      failures_.try_emplace(notice.group, GroupFailure{{notice.failure, notice.text}, notice.from, notice.lost});
      from.last_words = notice.text;
      return;
    case Kind::departed:
      departures_.try_emplace({notice.group, notice.from}, notice.calls);
      return;
    case Kind::question: {
      Notice answer{.kind = Kind::answer, .from = session_.rank(), .group = notice.group};
      set_text(answer.text, own_calls());
      return post(notice.from, answer);
    }
    case Kind::answer:
      from.answer = notice.text;
      from.answered = notice.group;
      return;
    case Kind::ended_well:
      from.ended_well = true;
      return;
    case Kind::ended_badly:
      from.ended_badly = true;
      return;
  }
}

void Board::post(int world_rank, const Notice& notice) {
  auto copy = std::make_shared<Notice>(notice);
  const Pending pending = session_.send(Channel::notices, world_rank, kTag, copy.get(), sizeof(Notice));
  sent_.push_back({std::move(copy), pending});
}

std::string Board::own_calls() const {
  std::vector<std::string> calls;
  for (const auto& [place, group] : entries_) {
    const bool failed = failures_.contains(group->key);
    calls.push_back(text(failed ? "failed in " : "is in ", text_of(*place, *group)));
  }
  return calls.empty() ? "is in no call" : join(calls, " and ");
}

bool Board::has_ended(int world_rank) const {
  const Rank& rank = ranks_[static_cast<size_t>(world_rank)];
  return rank.ended_well || rank.ended_badly || peers_.ended(world_rank);
}

void Board::fail(const GroupIdentity& group, const GroupFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failures_.try_emplace(group.key, failure).second) return;
  changes_.fetch_add(1);
  Notice notice{.kind = Kind::failed,
                .failure = failure.failure.kind,
                .from = session_.rank(),
                .lost = failure.lost,
                .group = group.key};
  set_text(notice.text, failure.failure.message);
  for (const int rank : group.world_ranks) {
    if (rank != session_.rank() && !has_ended(rank)) post(rank, notice);
  }
  flush(kSendingTakes_s);
}

std::optional<GroupFailure> Board::failure_of(const GroupIdentity& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(group.key);
  return found == failures_.end() ? std::nullopt : std::optional(found->second);
}

void Board::depart(const GroupIdentity& group, uint64_t calls) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const Notice notice{.kind = Kind::departed, .from = session_.rank(), .group = group.key, .calls = calls};
    for (const int rank : group.world_ranks) {
      if (rank != session_.rank() && !has_ended(rank)) post(rank, notice);
    }
    service_locked();
  } catch (const Error&) {
    // MPI has lost a member: who waits for this rank learns that from MPI too.
  }
}

std::optional<uint64_t> Board::departed_after(const GroupIdentity& group, int member) const {
  const std::lock_guard lock(mutex_);
  const auto found = departures_.find({group.key, group.world_rank_of(member)});
  return found == departures_.end() ? std::nullopt : std::optional(found->second);
}

std::string Board::end_of(int world_rank) const {
  const std::lock_guard lock(mutex_);
  const Rank& rank = ranks_[static_cast<size_t>(world_rank)];
  if (rank.ended_well) return "it has ended without making this call";
  if (!has_ended(world_rank)) return "";
  const std::string how = rank.ended_badly ? "it ended with an error" : "its process has ended";
  return rank.last_words.empty() ? how : text(how, ", after ", rank.last_words);
}

bool Board::lost(int world_rank) const {
  const std::lock_guard lock(mutex_);
  const Rank& rank = ranks_[static_cast<size_t>(world_rank)];
  return !rank.ended_well && has_ended(world_rank);
}

std::string Board::calls_of_every_rank() {
  std::unique_lock lock(mutex_);
  const uint64_t question = ++questions_;
  for (int rank = 0; rank < session_.size(); ++rank) {
    if (rank == session_.rank() || has_ended(rank)) continue;
    post(rank, {.kind = Kind::question, .from = session_.rank(), .group = question});
  }
  const auto waits_for = [&](int rank) {
    return rank != session_.rank() && ranks_[static_cast<size_t>(rank)].answered < question && !has_ended(rank);
  };
  const double until_s = now_s() + kAnswersTake_s;
  for (bool complete = false; !complete && now_s() < until_s;) {
    service_locked();
    complete = true;
    for (int rank = 0; rank < session_.size() && complete; ++rank) complete = !waits_for(rank);
    if (!complete) usleep(200);
  }
  std::vector<std::string> lines;
  for (int rank = 0; rank < session_.size(); ++rank) {
    lines.push_back(text("rank ", rank, " ",
                         rank == session_.rank() ? own_calls()
                         : waits_for(rank)       ? "does not answer: it is in no call, or stands still"
                                                 : answer_of(rank)));
    const std::string standstill = peers_.standstill_of(rank);
    if (!standstill.empty()) lines.back() = text("rank ", rank, " ", standstill);
  }
  return join(lines, "; ");
}

std::string Board::answer_of(int world_rank) const {
  const Rank& rank = ranks_[static_cast<size_t>(world_rank)];
  if (!has_ended(world_rank)) return rank.answer;
  return rank.last_words.empty() ? "has ended" : text("has ended, after ", rank.last_words);
}

void Board::flush(double longest_s) {
  const double until_s = now_s() + longest_s;
  while (true) {
    service_locked();
    const bool all_ended =
        std::ranges::all_of(sent_, [this](const Sent& sent) { return peers_.ended(sent.pending.peer); });
    if (all_ended || now_s() > until_s) return;
    usleep(100);
  }
}

bool Board::say_goodbye(bool ends_well, double longest_s) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const Notice notice{.kind = ends_well ? Kind::ended_well : Kind::ended_badly, .from = session_.rank()};
    for (int rank = 0; rank < session_.size(); ++rank) {
      if (rank != session_.rank() && !peers_.ended(rank)) post(rank, notice);  // also to those that wait for us to end
    }
    flush(kSendingTakes_s);
    ranks_[static_cast<size_t>(session_.rank())].ended_well = ends_well;
    const double until_s = now_s() + longest_s;
    while (ends_well && now_s() < until_s) {
      service_locked();
      if (std::ranges::all_of(ranks_, &Rank::ended_well)) return true;
      for (int rank = 0; rank < session_.size(); ++rank) {
        if (!ranks_[static_cast<size_t>(rank)].ended_well && has_ended(rank)) return false;
      }
      usleep(500);
    }
  } catch (const Error&) {
    // MPI has lost a rank.
  }
  return false;
}

}  // namespace lockstep::comm::mpi
