// The nccl backend over the stand-in: every operation, what is ordered behind what, and what each rank gets when ranks
// disagree, do not come, or end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/comm/in_process/failures.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/comm/nccl/cuda.h"
#include "lockstep/comm/nccl/nccl_world.h"
#include "lockstep/comm/self_check.h"
#include "stand_in.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using Kind = Failure::Kind;

// Says of all memory that it is a GPU's, as it is for the stand-in.
class AllOnGpu final : public ProcessGroup {
 public:
  explicit AllOnGpu(std::unique_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  std::string_view backend() const override { return group_->backend(); }
  int world_rank(int group_rank) const override { return group_->world_rank(group_rank); }
  void run(const Call& call) override { group_->run(moved(call)); }
  Work submit(const Call& call) override { return group_->submit(moved(call)); }
  void run_batch(std::span<const Call> calls) override { group_->run_batch(all_moved(calls)); }
  std::vector<Work> submit_batch(std::span<const Call> calls) override {
    return group_->submit_batch(all_moved(calls));
  }
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, std::string_view name) override {
    return std::make_unique<AllOnGpu>(group_->split(ranks, name));
  }
  Registered allocate(int64_t bytes) override { return group_->allocate(bytes); }
  void check() const override { group_->check(); }
  void set_rules(collective::RuleTable rules) override { group_->set_rules(std::move(rules)); }
  collective::Traffic traffic() const override { return group_->traffic(); }
  milliseconds default_deadline() const override { return group_->default_deadline(); }
  void set_default_deadline(milliseconds deadline) override { group_->set_default_deadline(deadline); }
  void set_flight_folder(std::string folder) override { group_->set_flight_folder(std::move(folder)); }
  void set_recorder(trace::Recorder* recorder) override { group_->set_recorder(recorder); }
  trace::Recorder* recorder() const override { return group_->recorder(); }

 private:
  static Call moved(Call call) {
    call.input.device = call.output.device = Device::cuda;
    return call;
  }
  static std::vector<Call> all_moved(std::span<const Call> calls) {
    std::vector<Call> result;
    for (const Call& call : calls) result.push_back(moved(call));
    return result;
  }

  const std::unique_ptr<ProcessGroup> group_;
};

// The same ranks, as threads, on GPUs of their own.
void on_gpus(int ranks, const RankBody& body) {
  run_ranks(ranks, {}, [&](ProcessGroup& host) {
    std::vector<int> all;
    for (int r = 0; r < host.size(); ++r) all.push_back(r);
    nccl::check_cuda(cudaSetDevice(host.rank()), "choosing a GPU");
    const std::unique_ptr<ProcessGroup> group = with_nccl(host.split(all, "dp"));
    body(*group);
  });
}

std::vector<Failure> failures(int ranks, const RankBody& body) {
  return failures_of(ranks, [&](const RankBody& each) { on_gpus(ranks, each); }, body);
}

// Memory and a stream of one rank.
struct Gpu {
  explicit Gpu(int64_t count, float value = 1) : values(static_cast<size_t>(count), value) {
    nccl::check_cuda(cudaStreamCreateWithPriority(&stream, 0, 0), "making a stream");
  }
  ~Gpu() { cudaStreamDestroy(stream); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Buffer buffer() {
    return {
        .data = values.data(), .count = static_cast<int64_t>(values.size()), .device = Device::cuda, .stream = stream};
  }

  std::vector<float> values;
  cudaStream_t stream = nullptr;
};

TEST(NcclGroup, EveryOperationIsItsDefinition) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_gpus(ranks, [](ProcessGroup& group) {
      std::vector<int> all;
      for (int r = 0; r < group.size(); ++r) all.push_back(r);
      AllOnGpu world(group.split(all, "tp"));
      for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}}) {
        for (const Exercise& exercise : every_exercise(world.size(), count)) {
          const std::string wrong = StartedExercise(world, exercise, exercise.seed % 3 == 0).finish();
          if (!wrong.empty()) throw InternalError(wrong);
        }
      }
    });
  }
}

TEST(NcclGroup, DataIsOrderedOnStreamsAndTheHostDoesNotWait) {
  std::atomic<bool> open{false};
  std::barrier enqueued(2);
  on_gpus(2, [&](ProcessGroup& group) {
    Gpu gpu(4);
    stand_in::put_on(gpu.stream, [&] {
      while (!open.load()) std::this_thread::sleep_for(milliseconds(1));
      for (float& value : gpu.values) value = 3;
    });
    const Work work = group.all_reduce_async(gpu.buffer(), Reduction::sum);
    work.wait();
    float seen = 0;
    stand_in::put_on(gpu.stream, [&] { seen = gpu.values[3]; });
    EXPECT_FALSE(work.done());
    enqueued.arrive_and_wait();
    open = true;
    work.synchronize();
    EXPECT_TRUE(work.done());
    group.barrier();
    cudaEvent_t end = nullptr;
    cudaEventCreateWithFlags(&end, 0);
    cudaEventRecord(end, gpu.stream);
    cudaStreamWaitEvent(nullptr, end, 0);
    cudaEventDestroy(end);
    EXPECT_EQ(seen, 6);
  });
}

TEST(NcclGroup, RanksThatDisagreeAreNamedWithinASecond) {
  const double start_s = now_s();
  const auto failed = failures(3, [](ProcessGroup& group) {
    Gpu gpu(8);
    Buffer buffer = gpu.buffer();
    group.all_reduce_async(buffer, Reduction::sum).synchronize();
    buffer.count = group.rank() == 2 ? 5 : 4;
    const Work work = group.all_reduce_async(buffer, Reduction::sum, {.tag = "bucket 1"});
    work.wait();  // orders streams only
    EXPECT_THROW(work.synchronize(), ProtocolMismatch);
    EXPECT_THROW(group.check(), ProtocolMismatch);
    group.all_reduce(buffer, Reduction::sum);
  });
  EXPECT_LT(now_s() - start_s, 1.0);
  for (const Failure& failure : failed) {
    EXPECT_EQ(failure.kind, Kind::protocol_mismatch);
    EXPECT_THAT(failure.message, AllOf(HasSubstr("call 2 of group 'dp'"),
                                       HasSubstr("ranks 0, 1 made all_reduce(sum) of 4 f32 [bucket 1]"),
                                       HasSubstr("rank 2 made all_reduce(sum) of 5 f32 [bucket 1]")));
  }
}

TEST(NcclGroup, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  std::barrier done(2);
  const auto failed = failures(2, [&](ProcessGroup& group) {
    Gpu gpu(4);
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
    if (group.rank() == 0) {
      try {
        group.all_reduce_async(gpu.buffer(), Reduction::sum, {.deadline = milliseconds(200)}).synchronize();
      } catch (...) {
        done.arrive_and_drop();
        throw;
      }
    }
    done.arrive_and_wait();
  });
  EXPECT_EQ(failed[0].kind, Kind::deadline_exceeded);
  EXPECT_THAT(failed[0].message,
              AllOf(HasSubstr("rank 0: in all_reduce(sum) of 4 f32 (call 2 on group 'dp')"), HasSubstr("for rank 1")));
}

TEST(NcclGroup, AGpuThatIsBehindIsTheDeadlinesToo) {
  std::atomic<bool> open{false};
  const auto failed = failures(2, [&](ProcessGroup& group) {
    Gpu gpu(4);
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
    if (group.rank() == 1) {
      stand_in::put_on(gpu.stream, [&] {
        while (!open.load()) std::this_thread::sleep_for(milliseconds(1));
      });
    }
    const Work work = group.all_reduce_async(gpu.buffer(), Reduction::sum, {.deadline = milliseconds(200)});
    if (group.rank() == 1) return work.synchronize();
    try {
      work.synchronize();
    } catch (...) {
      open = true;
      throw;
    }
  });
  EXPECT_EQ(failed[0].kind, Kind::deadline_exceeded);
  EXPECT_THAT(failed[0].message, AllOf(HasSubstr("rank 0: in all_reduce(sum) of 4 f32 (call 2 on group 'dp')"),
                                       HasSubstr("Every rank has made this call")));
}

TEST(NcclGroup, ARankThatEndsIsNamedAtOnce) {
  const double start_s = now_s();
  const auto failed = failures(3, [](ProcessGroup& group) {
    Gpu gpu(4);
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
    group.barrier();  // a rank that ends may take what is under way with it
    if (group.rank() == 1) throw Error("its disk is full");
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
  });
  EXPECT_LT(now_s() - start_s, 1.0);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(failed[rank].kind, Kind::peer_lost) << failed[rank].message;
    EXPECT_THAT(failed[rank].message,
                AllOf(HasSubstr(text("rank ", rank, ": in all_reduce(sum) of 4 f32 ")), HasSubstr("rank 1 was lost")));
  }
}

TEST(NcclGroup, AnErrorOfNcclAbortsTheGroup) {
  const auto failed = failures(1, [](ProcessGroup& group) {
    Gpu gpu(4);
    std::atomic<bool> open{false};
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
    stand_in::put_on(gpu.stream, [&] {
      while (!open.load()) std::this_thread::sleep_for(milliseconds(1));
    });
    const Work work = group.all_reduce_async(gpu.buffer(), Reduction::sum);
    stand_in::report(0, ncclSystemError);
    EXPECT_THROW(work.synchronize(), Error);
    open = true;
    stand_in::report(0, ncclSuccess);
    work.wait();
  });
  EXPECT_EQ(failed[0].kind, Kind::error) << failed[0].message;
  EXPECT_THAT(failed[0].message, AllOf(HasSubstr("rank 0: in all_reduce(sum) of 4 f32 (call 2 on group 'dp')"),
                                       HasSubstr("NCCL: "), HasSubstr("its last words")));
}

TEST(NcclGroup, ARefusedCallLeavesTheGroupAsItWas) {
  on_gpus(2, [](ProcessGroup& group) {
    Gpu gpu(4);
    float value = 0;
    EXPECT_THROW(group.all_reduce(gpu.buffer(), Reduction::sum, {.algorithm = "ring"}), InvalidArgument);
    EXPECT_THROW(group.all_gather(gpu.buffer(), {.data = &value, .count = 8}), Unsupported);
    EXPECT_THROW(group.send(gpu.buffer(), group.rank()), InvalidArgument);
    group.all_reduce_async(gpu.buffer(), Reduction::sum).synchronize();
    EXPECT_EQ(gpu.values[0], 2);
    nccl::check_cuda(cudaSetDevice(7), "choosing another GPU");
    EXPECT_THROW(group.all_reduce(gpu.buffer(), Reduction::sum), InvalidArgument);
    value = 1;
    group.all_reduce({.data = &value, .count = 1}, Reduction::sum);  // the host group's
    EXPECT_EQ(value, 2);
  });
}

}  // namespace
}  // namespace lockstep::comm
