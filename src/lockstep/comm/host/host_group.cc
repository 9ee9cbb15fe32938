#include "lockstep/comm/host/host_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/base/units.h"
#include "lockstep/comm/record_call.h"
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
      flight_(owner_->flight, name_),
      membership_(*owner_->segment, key, rank),
      of_caller_(Patience::of_caller(owner_->segment->world_size())),
      of_thread_(Patience::of_communication_thread(owner_->segment->world_size())),
      default_deadline_s_(static_cast<double>(owner_->segment->control().default_deadline_ms) / 1000),
      health_(view_),
      world_health_(world_view(*owner_->segment, owner_->world_rank)),
      programs_({.host_of_rank = std::vector<int>(static_cast<size_t>(view_.size()), 0), .native_adds_in_tree = true}),
      messages_(view_, health_, {Carries::messages, of_caller_, of_thread_, &flight_}),
      collectives_(view_, health_, programs_, flight_, {Carries::steps, of_caller_, of_thread_}),
      queue_({.world_rank = view_.world_rank(),
              .execute = [this](const Call& call, double deadline_s,
                                trace::Recorder* recorder) { execute(call, deadline_s, recorder, of_thread_); },
              .fail = [this](std::shared_ptr<Work::State> state,
                             const Failure& failure) { health_.conclude(std::move(state), failure); }}) {}

HostGroup::~HostGroup() {
  health_.abandon();
}

int HostGroup::world_rank(int group_rank) const {
  LOCKSTEP_CHECK(group_rank >= 0 && group_rank < size(), "rank ", group_rank, " of a group of ", size());
  return view_.world_ranks()[static_cast<size_t>(group_rank)];
}

double HostGroup::deadline_s(const Call& call) const {
  return call.options.deadline ? std::chrono::duration<double>(*call.options.deadline).count() : default_deadline_s_;
}

void HostGroup::run(const Call& call) {
  validate(call, rank(), size());
  if (is_message(call.operation)) {
    messages_.run({&call, 1}, deadline_s(call), recorder_);
  } else if (queue_.idle()) {
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
  if (!call.options.algorithm.empty()) programs_.choose(call);  // refuses a name that there is not
  const Place place{.call = info_of(call), .kind = "queued call", .number = ++submitted_};
  flight_.watch([&] { health_.check(&place); });
  return queue_.submit(call, deadline_s(call), recorder_);
}

void HostGroup::execute(const Call& call, double deadline_s, trace::Recorder* recorder, const Patience& patience) {
  const std::lock_guard lock(execution_);
  const double start_s = recorder != nullptr ? now_s() : 0;
  flight_.watch([&] { collectives_.execute(call, programs_.choose(call), deadline_s, patience); });
  if (recorder != nullptr) record_call(recorder, info_of(call), start_s);
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
  group->default_deadline_s_ = default_deadline_s_;
  group->recorder_ = recorder_;
  group->programs_.set_rules(programs_.rules());
  return group;
}

void HostGroup::set_rules(collective::RuleTable rules) {
  const std::lock_guard lock(execution_);
  programs_.set_rules(std::move(rules));
}

collective::Traffic HostGroup::traffic() const {
  const std::lock_guard lock(execution_);
  return collectives_.traffic();
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
  flight_.watch([&] {
    health_.check();
    world_health_.check();
  });
}

}  // namespace lockstep::comm::host
