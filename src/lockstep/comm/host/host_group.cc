#include "lockstep/comm/host/host_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/base/log.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/host/record_call.h"
#include "lockstep/comm/validate.h"

namespace lockstep::comm::host {

Rank::~Rank() {
  mark_ended(*segment, world_rank, RankState::left, "");
}

std::unique_ptr<ProcessGroup> HostGroup::world(std::shared_ptr<const Rank> rank) {
  GroupKey key{.name = "world"};
  key.world_ranks.resize(static_cast<size_t>(rank->segment->world_size()));
  std::iota(key.world_ranks.begin(), key.world_ranks.end(), 0);
  const int world_rank = rank->world_rank;
  return std::unique_ptr<ProcessGroup>(new HostGroup(std::move(rank), key, world_rank));
}

HostGroup::HostGroup(std::shared_ptr<const Rank> owner, const GroupKey& key, int rank)
    : owner_(std::move(owner)),
      name_(key.name),
      membership_(*owner_->segment, key, rank),
      of_caller_(Patience::of_caller(owner_->segment->world_size())),
      of_thread_(Patience::of_communication_thread(owner_->segment->world_size())),
      default_deadline_(owner_->segment->control().default_deadline_ms),
      health_(view_),
      world_health_(world_view(*owner_->segment, owner_->world_rank)),
      messages_(view_, health_, of_caller_, of_thread_),
      collectives_(view_, health_) {}

HostGroup::~HostGroup() {
  health_.abandon();
  {
    const std::lock_guard lock(queue_mutex_);
    destroyed_ = true;
  }
  queue_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int HostGroup::world_rank(int group_rank) const {
  LOCKSTEP_CHECK(group_rank >= 0 && group_rank < size(), "rank ", group_rank, " of a group of ", size());
  return view_.world_ranks()[static_cast<size_t>(group_rank)];
}

double HostGroup::deadline_s(const Call& call) const {
  return std::chrono::duration<double>(call.options.deadline.value_or(default_deadline_)).count();
}

void HostGroup::run(const Call& call) {
  validate(call, rank(), size());
  if (is_message(call.operation)) {
    messages_.run({&call, 1}, deadline_s(call), recorder_);
  } else if (pending_.load(std::memory_order_acquire) == 0) {
    execute(call, deadline_s(call), recorder_, of_caller_);
  } else {
    submit(call).wait();
  }
}

void HostGroup::run_batch(std::span<const Call> calls) {
  for (const Call& call : calls) validate(call, rank(), size());
  if (!calls.empty()) messages_.run(calls, deadline_s(calls.front()), recorder_);
}

Work HostGroup::submit(const Call& call) {
  validate(call, rank(), size());
  if (is_message(call.operation)) {
    return messages_.submit(call, deadline_s(call), recorder_);
  }
  const Place place{.call = info_of(call), .kind = "queued call", .number = ++submitted_};
  health_.check(&place);
  auto state = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back({.call = call,
                      .tag = std::string(call.options.tag),
                      .input_counts = {call.input_counts.begin(), call.input_counts.end()},
                      .output_counts = {call.output_counts.begin(), call.output_counts.end()},
                      .deadline_s = deadline_s(call),
                      .recorder = recorder_,
                      .state = state});
    pending_.fetch_add(1, std::memory_order_relaxed);
    if (!thread_.joinable()) thread_ = std::thread([this] { execute_queue(); });
  }
  queue_changed_.notify_one();
  return Work(std::move(state));
}

void HostGroup::execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Patience& patience) {
  const std::lock_guard lock(execution_);
  const double start_s = recorder != nullptr ? now_s() : 0;
  collectives_.execute(call, deadline_s, patience);
  if (recorder != nullptr) record_call(recorder, info_of(call), start_s);
}

void HostGroup::execute_queue() {
  log::set_thread_rank(view_.world_rank());
  std::unique_lock lock(queue_mutex_);
  while (true) {
    queue_changed_.wait(lock, [this] { return destroyed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    next.call.options.tag = next.tag;
    next.call.input_counts = next.input_counts;
    next.call.output_counts = next.output_counts;
    Failure failure;
    try {
      execute(next.call, next.deadline_s, next.recorder, of_thread_);
    } catch (...) {
      failure = Failure::of(std::current_exception());
    }
    pending_.fetch_sub(1, std::memory_order_release);
    if (failure) {
      health_.conclude(std::move(next.state), failure);
    } else {
      next.state->complete();
    }
    lock.lock();
  }
}

std::unique_ptr<ProcessGroup> HostGroup::split(std::span<const int> ranks, std::string_view name) {
  const std::string listed = text("split([", join(ranks), "], \"", name, "\") of group '", name_, "'");
  GroupKey key{.parent = view_.index, .parent_generation = view_.group->generation, .name = std::string(name)};
  int own = -1;
  for (const int member : ranks) {
    if (member < 0 || member >= size()) {
      throw InvalidArgument(text(listed, ": ranks must be 0 to ", size() - 1, ", not ", member));
    }
    if (std::count(ranks.begin(), ranks.end(), member) > 1) {
      throw InvalidArgument(text(listed, ": rank ", member, " is listed twice"));
    }
    if (member == rank()) own = static_cast<int>(key.world_ranks.size());
    key.world_ranks.push_back(world_rank(member));
  }
  if (own < 0) throw InvalidArgument(text(listed, ": the caller, rank ", rank(), ", must be one of the ranks"));
  key.repeat = splits_[text(join(ranks), ":", name)]++;
  std::unique_ptr<HostGroup> group(new HostGroup(owner_, key, own));
  group->default_deadline_ = default_deadline_;
  group->recorder_ = recorder_;
  return group;
}

Registered HostGroup::allocate(int64_t bytes) {
  if (owner_->arena != nullptr) return owner_->arena->allocate(bytes);
  check_memory(bytes);
  const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kAlignmentBytes));
  void* const memory = std::aligned_alloc(kAlignmentBytes, size);
  if (memory == nullptr) throw InvalidArgument(text("allocate: the host cannot give ", format_size(bytes)));
  std::memset(memory, 0, size);
  return {std::shared_ptr<void>(memory, std::free), bytes};
}

void HostGroup::check() const {
  health_.check();
  world_health_.check();
}

}  // namespace lockstep::comm::host
