#include "lockstep/comm/mpi/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>

#include "lockstep/base/units.h"
#include "lockstep/comm/host/arena.h"
#include "lockstep/comm/mpi/announcement.h"
#include "lockstep/comm/mpi/mpi_world.h"
#include "lockstep/comm/shared_memory/shared_memory.h"
#include "lockstep/comm/validate.h"

namespace lockstep::comm::mpi {
namespace {

constexpr int kTagsOfAGroup = 4;

std::vector<int> hosts_of(const GroupIdentity& group, const Peers& peers) {
  std::vector<int> hosts;
  for (const int32_t world_rank : group.world_ranks) hosts.push_back(peers.host_of(world_rank));
  return hosts;
}

}  // namespace

Process::Process(std::chrono::milliseconds longest_goodbye)
    : peers(session),
      board(session, peers),
      flight(session.rank()),
      termination_(peers, session.rank(), session.size()),
      longest_goodbye_(longest_goodbye) {}

Process::~Process() {
  const bool ends_well = std::uncaught_exceptions() == 0;
  if (board.say_goodbye(ends_well, std::chrono::duration<double>(longest_goodbye_).count())) session.allow_finalize();
}

int Process::take_tags(const GroupIdentity& group) {
  constexpr uint64_t kGroupTags = uint64_t{1} << 28;  // MPI's tags have at least 30 bits in OpenMPI
  const int tag = static_cast<int>(group.key % kGroupTags) * kTagsOfAGroup;
  const std::lock_guard lock(mutex_);
  const auto [other, is_free] = groups_by_tag_.emplace(tag, group.name);
  if (!is_free) {
    throw Unsupported(text("rank ", session.rank(), ": groups '", other->second, "' and '", group.name,
                           "' would have the same MPI tags; give one of them another name"));
  }
  return tag;
}

void Process::return_tags(int tag) {
  const std::lock_guard lock(mutex_);
  groups_by_tag_.erase(tag);
}

void Process::meet_on_this_host(std::chrono::milliseconds deadline) {
  std::random_device random;
  const uint64_t own = uint64_t{random()} << 32 | random();
  std::vector<uint64_t> numbers(static_cast<size_t>(session.size()));
  session.all_gather(&own, numbers.data(), sizeof own);
  const std::vector<int> here = peers.ranks_of_host(peers.host_of(session.rank()));
  const auto place = std::ranges::find(here, session.rank()) - here.begin();
  if (here.size() < 2 || session.size() > host::kMaxRanks) return;
  in_memory = meet_on_host({.name = text("mpi-", numbers.front()),  // one job's: rank 0 drew it
                            .rank = static_cast<int>(place),
                            .ranks = static_cast<int>(here.size()),
                            .world_rank = session.rank(),
                            .world_size = session.size(),
                            .deadline = deadline})
                  .group;
}

bool Process::share_memory(std::span<const int32_t> world_ranks) const {
  const int here = peers.host_of(session.rank());
  return in_memory != nullptr && world_ranks.size() > 1 &&
         std::ranges::all_of(world_ranks, [&](int32_t rank) { return peers.host_of(rank) == here; });
}

std::unique_ptr<ProcessGroup> MpiGroup::world(std::shared_ptr<Process> process, std::chrono::milliseconds deadline) {
  GroupIdentity identity{.key = hash_of("world"), .name = "world", .rank = process->session.rank()};
  identity.world_ranks.resize(static_cast<size_t>(process->session.size()));
  std::iota(identity.world_ranks.begin(), identity.world_ranks.end(), 0);
  std::unique_ptr<ProcessGroup> group(new MpiGroup(std::move(process), std::move(identity)));
  group->set_default_deadline(deadline);
  return group;
}

MpiGroup::MpiGroup(std::shared_ptr<Process> process, GroupIdentity identity)
    : process_(std::move(process)),
      identity_(std::move(identity)),
      flight_(process_->flight, identity_.name),
      health_(process_->board, identity_),
      view_{process_->session, identity_, health_, process_->peers, process_->take_tags(identity_)},
      of_caller_(Pace::of_caller(process_->peers.ranks_on_host())),
      programs_({.host_of_rank = hosts_of(identity_, process_->peers),
                 .rules = collective::builtin_rules(),
                 .announced_bytes = kInlineBytes}),
      collectives_(view_, process_->board, programs_, flight_),
      messages_(view_, process_->board, flight_),
      collective_lane_(std::make_unique<Lane>(health_, of_caller_, identity_.world_rank(),
                                              [this](const Call& call, double deadline_s, const Pace& pace) {
                                                const std::lock_guard lock(programs_mutex_);
                                                collectives_.execute(call, programs_.choose(call), deadline_s, pace);
                                              })) {}

MpiGroup::~MpiGroup() {
  health_.abandon();
  collective_lane_.reset();  // calls under way end, and with them the use of the tags
  message_lanes_.clear();
  process_->board.depart(identity_, collectives_.calls());
  process_->return_tags(view_.tag);
}

int MpiGroup::world_rank(int group_rank) const {
  LOCKSTEP_CHECK(group_rank >= 0 && group_rank < size(), "rank ", group_rank, " of a group of ", size());
  return identity_.world_rank_of(group_rank);
}

double MpiGroup::deadline_s(const Call& call) const {
  return std::chrono::duration<double>(call.options.deadline.value_or(default_deadline_)).count();
}

Lane& MpiGroup::lane_of(const Call& call) {
  if (!is_message(call.operation)) return *collective_lane_;
  const std::lock_guard lock(lanes_mutex_);
  std::unique_ptr<Lane>& lane = message_lanes_[{call.peer, call.operation == Operation::send}];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>(
        health_, of_caller_, identity_.world_rank(),
        [this, number = uint64_t{0}](const Call& message, double deadline_s, const Pace& pace) mutable {
          messages_.execute(message, ++number, deadline_s, pace);
        });
  }
  return *lane;
}

void MpiGroup::run(const Call& call) {
  validate(call, rank(), size());
  if (!call.options.algorithm.empty()) programs_.choose(call);  // refuses a name that there is not
  lane_of(call).run(call, deadline_s(call), recorder_);
}

Work MpiGroup::submit(const Call& call) {
  validate(call, rank(), size());
  if (!call.options.algorithm.empty()) programs_.choose(call);
  Work work;
  flight_.watch([&] { work = lane_of(call).submit(call, deadline_s(call), recorder_); });
  return work;
}

std::unique_ptr<ProcessGroup> MpiGroup::split(std::span<const int> ranks, std::string_view name) {
  const std::string listed = text("split([", join(ranks), "], \"", name, "\") of group '", identity_.name, "'");
  GroupIdentity identity{.name = std::string(name), .rank = -1};
  for (const int member : ranks) {
    if (member < 0 || member >= size()) {
      throw InvalidArgument(text(listed, ": ranks must be 0 to ", size() - 1, ", not ", member));
    }
    if (std::count(ranks.begin(), ranks.end(), member) > 1) {
      throw InvalidArgument(text(listed, ": rank ", member, " is listed twice"));
    }
    if (member == rank()) identity.rank = identity.size();
    identity.world_ranks.push_back(world_rank(member));
  }
  if (identity.rank < 0) {
    throw InvalidArgument(text(listed, ": the caller, rank ", rank(), ", must be one of the ranks"));
  }
  if (process_->share_memory(identity.world_ranks)) {
    std::unique_ptr<ProcessGroup> group = process_->in_memory->split(identity.world_ranks, name);
    group->set_default_deadline(default_deadline_);
    group->set_recorder(recorder_);
    return group;
  }
  const uint64_t repeat = splits_[text(join(ranks), ":", name)]++;
  identity.key = hash_of(text(identity_.key, ":", join(identity.world_ranks), ":", name, ":", repeat));
  std::unique_ptr<MpiGroup> group(new MpiGroup(process_, std::move(identity)));
  group->default_deadline_ = default_deadline_;
  group->recorder_ = recorder_;
  group->set_rules(programs_.rules());
  return group;
}

void MpiGroup::set_rules(collective::RuleTable rules) {
  const std::lock_guard lock(programs_mutex_);
  programs_.set_rules(std::move(rules));
}

collective::Traffic MpiGroup::traffic() const {
  const std::lock_guard lock(programs_mutex_);
  return collectives_.traffic();
}

void MpiGroup::set_flight_folder(std::string folder) {
  if (process_->in_memory != nullptr) process_->in_memory->set_flight_folder(folder);
  process_->flight.set_folder(std::move(folder));
}

Registered MpiGroup::allocate(int64_t bytes) {
  if (process_->in_memory != nullptr) return process_->in_memory->allocate(bytes);
  host::check_memory(bytes);
  const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kAlignmentBytes));
  void* const memory = std::aligned_alloc(kAlignmentBytes, size);
  if (memory == nullptr) throw InvalidArgument(text("allocate: the host cannot give ", format_size(bytes)));
  std::memset(memory, 0, size);
  return {std::shared_ptr<void>(memory, std::free), bytes};
}

}  // namespace lockstep::comm::mpi

namespace lockstep::comm {

std::string_view mpi_missing_because() {
  return "";
}

std::unique_ptr<ProcessGroup> join_mpi_world(const MpiWorldOptions& options) {
  auto process = std::make_shared<mpi::Process>(options.deadline);
  const int size = process->session.size();
  if (options.expected_ranks != 0 && options.expected_ranks != size) {
    throw Unsupported(text("the launcher started ", options.expected_ranks, " ranks, but MPI connects ", size,
                           " of them: start them with the mpirun of the MPI that lockstep was built with, or with an "
                           "srun that speaks PMIx (srun --mpi=pmix)"));
  }
  if (options.shared_memory_inside && process->peers.hosts() > 1) process->meet_on_this_host(options.deadline);
  return mpi::MpiGroup::world(std::move(process), options.deadline);
}

}  // namespace lockstep::comm
