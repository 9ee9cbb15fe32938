#include "lockstep/comm/in_process/in_process.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::comm {
namespace {

Buffer f32(std::vector<float>& values) {
  return {.data = values.data(), .count = static_cast<int64_t>(values.size()), .type = DataType::f32};
}

TEST(InProcess, AllReduceOfEverySize) {
  for (const int64_t n : {0, 1, 1000, 100'000}) {
    run_ranks(3, {}, [n](ProcessGroup& world) {
      std::vector<float> values(static_cast<size_t>(n), static_cast<float>(world.rank() + 1));
      world.all_reduce(f32(values), Reduction::sum);
      for (const float value : values) ASSERT_EQ(value, 6);
      world.all_reduce_async(f32(values), Reduction::max).wait();
      for (const float value : values) ASSERT_EQ(value, 6);
    });
  }
}

}  // namespace
}  // namespace lockstep::comm
