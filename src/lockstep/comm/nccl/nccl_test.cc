// Every NCCL operation on a communicator of one rank: with one GPU each result can be told from the input. Skipped, and
// said so, where there is no GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/comm/nccl/cuda.h"
#include "lockstep/comm/nccl/nccl_world.h"

namespace lockstep::comm {
namespace {

using testing::Each;

using Floats = std::vector<float>;

// Floats on the GPU.
class OnGpu {
 public:
  explicit OnGpu(const Floats& values) : count_(static_cast<int64_t>(values.size())) {
    nccl::check_cuda(cudaMalloc(&data_, values.size() * sizeof(float)), "allocating");
    nccl::check_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
                     "copying");
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  Buffer buffer() const { return {.data = data_, .count = count_, .device = Device::cuda}; }
  // Behind what the default stream holds.
  Floats read() const {
    Floats values(static_cast<size_t>(count_));
    nccl::check_cuda(cudaMemcpy(values.data(), data_, values.size() * sizeof(float), cudaMemcpyDeviceToHost),
                     "copying");
    return values;
  }

 private:
  int64_t count_;
  void* data_ = nullptr;
};

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) GTEST_SKIP() << "no GPU: NCCL was not run";
    group_ = with_nccl(single_rank());
  }

  std::unique_ptr<ProcessGroup> group_;
  const Floats values_{1, 2, 3, 4};
};

TEST_F(Nccl, Reductions) {
  for (const Reduction reduction : {Reduction::sum, Reduction::average, Reduction::min, Reduction::max}) {
    const OnGpu all(values_), input(values_), slice({0, 0, 0, 0}), result({0, 0, 0, 0}), uneven({0, 0, 0, 0});
    group_->all_reduce(all.buffer(), reduction);
    group_->reduce_scatter(input.buffer(), slice.buffer(), reduction);
    group_->reduce(input.buffer(), result.buffer(), 0, reduction);
    const std::vector<int64_t> counts{4};
    group_->reduce_scatter_uneven(input.buffer(), uneven.buffer(), counts, reduction);
    for (const OnGpu* each : {&all, &slice, &result, &uneven}) EXPECT_EQ(each->read(), values_) << name(reduction);
  }
}

TEST_F(Nccl, EveryType) {
  for (const DataType type :
       {DataType::f32, DataType::f64, DataType::bf16, DataType::f16, DataType::i32, DataType::i64, DataType::u8}) {
    const OnGpu memory({1, 2, 3, 4});
    Buffer buffer = memory.buffer();
    buffer.type = type;
    buffer.count = 4 * static_cast<int64_t>(sizeof(float)) / element_size(type);
    group_->all_reduce(buffer, Reduction::sum);
    group_->broadcast(buffer, 0);
    EXPECT_EQ(memory.read(), values_) << name(type);
  }
}

TEST_F(Nccl, DataThatMoves) {
  const OnGpu input(values_), same(values_);
  const std::vector<int64_t> counts{4};
  const std::vector<std::function<void(Buffer output)>> calls{
      [&](Buffer output) { group_->all_gather(input.buffer(), output); },
      [&](Buffer output) { group_->all_gather_uneven(input.buffer(), output, counts); },
      [&](Buffer output) { group_->scatter(input.buffer(), output, 0); },
      [&](Buffer output) { group_->gather(input.buffer(), output, 0); },
      [&](Buffer output) { group_->all_to_all(input.buffer(), output); },
      [&](Buffer output) { group_->all_to_all_uneven(input.buffer(), counts, output, counts); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const OnGpu output({0, 0, 0, 0});
    calls[i](output.buffer());
    EXPECT_EQ(output.read(), values_) << "call " << i;
  }
  group_->all_to_all(same.buffer(), same.buffer());
  EXPECT_EQ(same.read(), values_);
}

TEST_F(Nccl, AsynchronousCallsComeBehindTheCallersStream) {
  cudaStream_t stream = nullptr;
  nccl::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  const Floats many(1 << 22, 5.0F);
  const OnGpu source(many), data(Floats(many.size(), 0.0F)), copy(Floats(many.size(), 0.0F));
  const size_t bytes = many.size() * sizeof(float);
  nccl::check_cuda(cudaMemcpyAsync(data.buffer().data, source.buffer().data, bytes, cudaMemcpyDeviceToDevice, stream),
                   "copying");
  Buffer buffer = data.buffer();
  buffer.stream = stream;
  const Work work = group_->all_reduce_async(buffer, Reduction::sum, {.tag = "bucket 0"});
  work.wait();
  nccl::check_cuda(cudaMemcpyAsync(copy.buffer().data, data.buffer().data, bytes, cudaMemcpyDeviceToDevice, stream),
                   "copying");
  nccl::check_cuda(cudaStreamSynchronize(stream), "waiting");
  EXPECT_THAT(copy.read(), Each(5.0F));
  work.synchronize();
  EXPECT_TRUE(work.done());
  cudaStreamDestroy(stream);
}

TEST_F(Nccl, GroupsHaveCommunicatorsOfTheirOwn) {
  const auto part = group_->split(std::vector{0}, "dp");
  const OnGpu a(values_), b(values_);
  const Work first = group_->all_reduce_async(a.buffer(), Reduction::sum);
  const Work second = part->all_reduce_async(b.buffer(), Reduction::sum);
  second.synchronize();
  first.synchronize();
  part->check();
}

TEST_F(Nccl, HostMemoryIsTheHostGroups) {
  float value = 3;
  group_->all_reduce({.data = &value, .count = 1}, Reduction::sum);
  group_->barrier();
  EXPECT_EQ(value, 3);
}

TEST_F(Nccl, RefusesWhatItCannotDo) {
  const OnGpu input(values_);
  float value = 3;
  EXPECT_THROW(group_->all_reduce(input.buffer(), Reduction::sum, {.algorithm = "ring"}), InvalidArgument);
  EXPECT_THROW(group_->all_gather(input.buffer(), {.data = &value, .count = 4}), Unsupported);
  EXPECT_THROW(group_->send(input.buffer(), 0), InvalidArgument);
  EXPECT_THROW(group_->all_reduce({.data = &value, .count = 1, .device = Device::cuda}, Reduction::sum),
               InvalidArgument);
  group_->all_reduce(input.buffer(), Reduction::sum);  // none of these failed the group
}

}  // namespace
}  // namespace lockstep::comm
