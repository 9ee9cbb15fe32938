// Moves bytes between the ranks of a group; knows nothing of tensors.
//
// A call is data (`Call`): the same value is checked against the other ranks' calls, executed, recorded in the trace
// and printed in errors. A backend implements run, submit and split; the operations are written on them.
//
//   run(call)      blocking, on the caller's thread when nothing is queued on this group (else it queues and waits)
//   submit(call)   queued; executed in order, per group, by the group's communication thread, which sleeps when idle
//
// Calls of one group are matched by their order on each rank. Different groups are independent of one another: their
// asynchronous calls may be made in any order; blocking calls of two groups in swapped order meet their deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/collective/choose.h"
#include "lockstep/collective/count.h"

namespace lockstep::trace {
class Recorder;
}

namespace lockstep::comm {

enum class DataType : uint8_t { f32, f64, bf16, f16, i32, i64, u8 };
constexpr int64_t element_size(DataType type) {
  constexpr int8_t kBytes[] = {4, 8, 2, 2, 4, 8, 1};
  return kBytes[static_cast<int>(type)];
}
std::string_view name(DataType type);

// average is refused for integers. The order of additions is fixed, so results are the same bits on every rank and in
// every run: a balanced tree over the ranks ((r0+r1)+(r2+r3)...), in which bf16 and f16 are added in fp32 and rounded
// once, unless the algorithm rounds per hop (collective::Rounding) or is the native one of MPI or NCCL.
enum class Reduction : uint8_t { sum, average, min, max };
std::string_view name(Reduction reduction);

enum class Operation : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  scatter,
  gather,
  all_to_all,
  send,
  receive,
  barrier
};
std::string_view name(Operation operation);
constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter || operation == Operation::reduce;
}
constexpr bool has_root(Operation operation) {
  return operation == Operation::broadcast || operation == Operation::reduce || operation == Operation::scatter ||
         operation == Operation::gather;
}
constexpr bool is_message(Operation operation) {
  return operation == Operation::send || operation == Operation::receive;
}

enum class Device : uint8_t { cpu, cuda };

struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // elements
  DataType type = DataType::f32;
  Device device = Device::cpu;
  void* stream = nullptr;                  // a cudaStream_t: the caller's; none on CPU
  std::shared_ptr<const void> keep_alive;  // held until the call is done, for asynchronous calls; may be null

  int64_t bytes() const { return count * element_size(type); }
};

struct CallOptions {
  std::optional<std::chrono::milliseconds> deadline;  // longest wait for another rank; absent: the group's
  // What errors and traces show, e.g. "bucket 3"; copied. Ranks must agree on it as on the rest of a call.
  std::string_view tag;
  // How a collective moves its data: a name of its operation in collective::algorithms() ("ring"), collective::kNative
  // for the backend's own way, or empty: as the group's rules choose. Copied; ranks must agree on it.
  std::string_view algorithm{};
  // Of a reduction: only an algorithm that adds in the balanced tree over the ranks (see Reduction), on whatever hosts
  // they are, so that the bits depend on the number of ranks alone. It may take longer.
  bool balanced_tree = false;
};

// Elements for or from each rank of a group, in rank order. The list must live until the function it is given to
// returns; asynchronous calls copy it.
using Counts = std::span<const int64_t>;

// One operation as each rank asks for it.
struct Call {
  Operation operation = Operation::barrier;
  Buffer input;   // all_reduce, broadcast: == output (in place). scatter: of the root. receive, barrier: unused
  Buffer output;  // reduce, gather: of the root. send, barrier: unused
  Reduction reduction = Reduction::sum;
  int peer = -1;  // broadcast, reduce, scatter, gather: root; send, receive: the other rank; in ranks of this group
  CallOptions options;
  // Empty where every rank's part has the same size. Otherwise of `size` elements each: reduce_scatter's parts of the
  // input; all_gather's parts of the output; all_to_all has both.
  Counts input_counts{}, output_counts{};

  bool uneven() const { return !input_counts.empty() || !output_counts.empty(); }
};

// "all_reduce(sum) of 1024 f32 [bucket 3]"
std::string describe(const Call& call);

// One send or receive of a batch.
struct Message {
  Operation operation = Operation::send;  // or receive
  Buffer buffer;
  int peer = -1;  // in ranks of the group
};

// A handle on a submitted call. Copies refer to the same call; it is safe to drop (errors are kept by the group and are
// thrown by its next call, and by ProcessGroup::check).
class Work {
 public:
  struct State;
  Work() = default;  // already complete
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Returns when the result may be used. On CPU that means it is there; on a device, that what is put on the call's
  // stream from now on finds it there. Throws PeerLost, DeadlineExceeded, ProtocolMismatch, as often as it is called.
  void wait() const;
  // Blocks the host until the result is there, and the ranks have agreed on the call; on CPU the same as wait().
  void synchronize() const;
  bool done() const;

 private:
  std::shared_ptr<State> state_;
};

// Memory of the group that peers can read and write without a copy. Aligned to 64 bytes, zeroed, freed with the last
// copy. Registered with the world means: with every group split from it.
struct Registered {
  std::shared_ptr<void> memory;
  int64_t bytes = 0;
  void* data() const { return memory.get(); }
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual std::string_view backend() const = 0;
  // Rank in the world of a rank of this group; errors name world ranks.
  virtual int world_rank(int group_rank) const = 0;

  virtual void run(const Call& call) = 0;
  virtual Work submit(const Call& call) = 0;
  // Sends and receives of one deadline that must make progress beside one another; all or, if one is invalid, none. As
  // they are: every call is submitted, and run_batch waits for all. A backend whose submitted messages wait for one
  // another, or that has a faster way, overrides them.
  virtual void run_batch(std::span<const Call> calls);
  virtual std::vector<Work> submit_batch(std::span<const Call> calls);

  // The group of the listed ranks (of this group), in that order. Every listed rank calls it with the same list and
  // name; others need not. The caller must be listed. Does not communicate: a missing rank shows at the first
  // collective.
  virtual std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, std::string_view name) = 0;

  // throws InvalidArgument when the host cannot give so much
  virtual Registered allocate(int64_t bytes) = 0;

  // Throws the error that this group or its world has failed with, if any.
  virtual void check() const = 0;

  // Which algorithm serves the collectives that name none. Every rank of the group must have the same rules. Without
  // any, all of them are native. Groups split later inherit them.
  virtual void set_rules(collective::RuleTable rules) = 0;
  // What this rank has sent and received as steps of programs, counted as it happened: for each call what
  // collective::count says.
  virtual collective::Traffic traffic() const = 0;

  virtual std::chrono::milliseconds default_deadline() const = 0;
  virtual void set_default_deadline(std::chrono::milliseconds deadline) = 0;
  // The last operations of this rank, over all its groups, are written into this folder when a call fails
  // (flight_recorder.h). For the world: groups that are split from it are recorded with it.
  virtual void set_flight_folder(std::string folder) = 0;
  // Where calls are recorded (track communication); null: nowhere. Groups split later inherit it.
  virtual void set_recorder(trace::Recorder* recorder) = 0;
  virtual trace::Recorder* recorder() const = 0;

  // -- the operations, written on run and submit -------------------------------------------------------------------
  // All throw PeerLost, DeadlineExceeded, ProtocolMismatch; InvalidArgument for a call no group could execute.
  // A rank sends, in elements and at least: all_reduce 2 (size-1)/size n; reduce_scatter, all_gather (size-1) n;
  // broadcast and reduce n, but for one end; scatter's root (size-1) n; gather n; all_to_all (size-1) n. Uneven: the
  // parts that are for others, and all_gather its own part size-1 times.

  // in_out [n] on every rank <- the reduction over ranks.
  void all_reduce(Buffer in_out, Reduction reduction, CallOptions options = {});
  Work all_reduce_async(Buffer in_out, Reduction reduction, CallOptions options = {});
  // input [size * n], output [n] <- this rank's slice of the reduction. output may be that slice of input itself.
  void reduce_scatter(Buffer input, Buffer output, Reduction reduction, CallOptions options = {});
  Work reduce_scatter_async(Buffer input, Buffer output, Reduction reduction, CallOptions options = {});
  // input [n], output [size * n] <- every rank's input in rank order. input may be this rank's slice of output itself.
  void all_gather(Buffer input, Buffer output, CallOptions options = {});
  Work all_gather_async(Buffer input, Buffer output, CallOptions options = {});
  // The same with counts[r] elements for rank r: input [sum of counts], output [counts[rank]]. Every rank gives the
  // same counts; any may be 0.
  void reduce_scatter_uneven(Buffer input, Buffer output, Counts counts, Reduction reduction, CallOptions options = {});
  Work reduce_scatter_uneven_async(Buffer input, Buffer output, Counts counts, Reduction reduction,
                                   CallOptions options = {});
  // The same with counts[r] elements from rank r: input [counts[rank]], output [sum of counts].
  void all_gather_uneven(Buffer input, Buffer output, Counts counts, CallOptions options = {});
  Work all_gather_uneven_async(Buffer input, Buffer output, Counts counts, CallOptions options = {});
  // in_out [n] <- root's.
  void broadcast(Buffer in_out, int root, CallOptions options = {});
  Work broadcast_async(Buffer in_out, int root, CallOptions options = {});
  // output [n] of root <- the reduction of every rank's input [n]. Root's output may be its input; the others' output
  // is not looked at.
  void reduce(Buffer input, Buffer output, int root, Reduction reduction, CallOptions options = {});
  Work reduce_async(Buffer input, Buffer output, int root, Reduction reduction, CallOptions options = {});
  // output [n] <- this rank's slice of root's input [size * n]. Root's output may be its slice of the input; the
  // others' input is not looked at.
  void scatter(Buffer input, Buffer output, int root, CallOptions options = {});
  Work scatter_async(Buffer input, Buffer output, int root, CallOptions options = {});
  // output [size * n] of root <- every rank's input [n] in rank order. Root's input may be its slice of the output; the
  // others' output is not looked at.
  void gather(Buffer input, Buffer output, int root, CallOptions options = {});
  Work gather_async(Buffer input, Buffer output, int root, CallOptions options = {});
  // Slice r of output [size * n] <- slice `rank` of rank r's input [size * n]. output may be the input.
  void all_to_all(Buffer input, Buffer output, CallOptions options = {});
  Work all_to_all_async(Buffer input, Buffer output, CallOptions options = {});
  // The same with input_counts[r] elements to rank r and output_counts[r] from it, their parts in rank order. What one
  // rank sends to another is what that one expects from it. output may be the input if both counts are the same list.
  void all_to_all_uneven(Buffer input, Counts input_counts, Buffer output, Counts output_counts,
                         CallOptions options = {});
  Work all_to_all_uneven_async(Buffer input, Counts input_counts, Buffer output, Counts output_counts,
                               CallOptions options = {});
  // Matched with the peer's receive in order, per pair of ranks. Any size. A blocking send returns when the data may be
  // overwritten; it may wait for the receive to be made.
  void send(Buffer input, int peer, CallOptions options = {});
  Work send_async(Buffer input, int peer, CallOptions options = {});
  void receive(Buffer output, int peer, CallOptions options = {});
  Work receive_async(Buffer output, int peer, CallOptions options = {});
  // Sends and receives that are under way together, so that ranks may list theirs in any order; those to and from one
  // peer are matched in the order of the list. Returns when all are done. An invalid one is refused before any is sent.
  void batch(std::span<const Message> messages, CallOptions options = {});
  std::vector<Work> batch_async(std::span<const Message> messages, CallOptions options = {});
  void barrier(CallOptions options = {});
  Work barrier_async(CallOptions options = {});
};

}  // namespace lockstep::comm
