// Checks that see errors, bandwidths by their definitions, and what is read out of times that are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/measure/account.h"
#include "lockstep/measure/message_time.h"

namespace lockstep::measure {
namespace {

using comm::DataType;
using comm::Operation;
using comm::ProcessGroup;
using comm::Reduction;
using testing::DoubleNear;

constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                     Operation::broadcast,  Operation::reduce,         Operation::scatter,
                                     Operation::gather,     Operation::all_to_all,     Operation::send};
constexpr DataType kTypes[] = {DataType::f32, DataType::f64, DataType::bf16, DataType::f16,
                               DataType::i32, DataType::i64, DataType::u8};

std::vector<Reduction> reductions_of(Operation operation, DataType type) {
  if (!comm::reduces(operation)) return {Reduction::sum};
  std::vector<Reduction> reductions{Reduction::sum, Reduction::min, Reduction::max};
  if (type != DataType::i32 && type != DataType::i64 && type != DataType::u8) reductions.push_back(Reduction::average);
  return reductions;
}

TEST(KnownCall, FindsNothingWrongInWhatIsRight) {
  for (const int ranks : {1, 2, 3, 5}) {
    comm::run_ranks(ranks, {}, [](ProcessGroup& group) {
      const CallMemory memory(group, 64'000);
      for (const Operation operation : kOperations) {
        for (const DataType type : kTypes) {
          for (const Reduction reduction : reductions_of(operation, type)) {
            for (const bool in_place : {false, true}) {
              if (in_place && operation == Operation::send) continue;
              const CallShape shape{operation, type, reduction, group.size() - 1, 7};
              KnownCall call(group, shape, in_place, "", memory);
              call.fill();
              call.run();
              ASSERT_EQ(call.wrong(), 0) << name_of(operation) << " of " << name(type) << " " << name(reduction);
            }
          }
        }
      }
    });
  }
}

// What fill() leaves in the output is wrong everywhere.
TEST(KnownCall, CountsEveryWrongValue) {
  comm::run_ranks(3, {}, [](ProcessGroup& group) {
    const CallMemory memory(group, 64'000);
    for (const Operation operation : kOperations) {
      for (const DataType type : kTypes) {
        KnownCall call(group, {operation, type, Reduction::sum, group.rank(), 5}, false, "", memory);
        call.fill();
        const bool in_blocks =
            deals_in_blocks(operation) && operation != Operation::reduce_scatter && operation != Operation::scatter;
        ASSERT_EQ(call.wrong(), in_blocks ? 15 : 5) << name_of(operation) << " of " << name(type);
      }
    }
  });
}

TEST(KnownCall, SeesOneElementThatIsAnothers) {
  comm::run_ranks(2, {}, [](ProcessGroup& group) {
    const CallMemory memory(group, 4000);
    KnownCall call(group, {.count = 1000}, true, "", memory);
    call.fill();
    call.run();
    auto* const values = static_cast<float*>(memory.first.data());
    ASSERT_EQ(call.wrong(), 0);
    values[17] += 1;
    ASSERT_EQ(call.wrong(), 1);
    values[17] -= 1;
    std::rotate(values, values + 1, values + 1000);  // everything one place off
    ASSERT_GT(call.wrong(), 500);
  });
}

TEST(Sizes, AreRoundedUpToWholeElementsPerRank) {
  const CallShape gather{.operation = Operation::all_gather};
  EXPECT_EQ(count_for(4, gather, 3), 1);
  EXPECT_EQ(bytes_of({.operation = Operation::all_gather, .count = 1}, 3), 12);
  EXPECT_EQ(count_for(1 << 20, gather, 3), 87382);
  EXPECT_EQ(count_for(5, {.operation = Operation::all_reduce}, 3), 2);
  EXPECT_EQ(count_for(0, {.operation = Operation::broadcast, .type = DataType::f64}, 3), 1);
}

TEST(Bandwidth, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Operation::all_reduce, 4), 1.5);
  for (const Operation each : {Operation::reduce_scatter, Operation::all_gather, Operation::all_to_all,
                               Operation::scatter, Operation::gather}) {
    EXPECT_DOUBLE_EQ(bus_factor(each, 4), 0.75);
  }
  for (const Operation each : {Operation::broadcast, Operation::reduce, Operation::send}) {
    EXPECT_DOUBLE_EQ(bus_factor(each, 4), 1);
  }
  const Row row{.shape = {.count = 250'000}, .ranks = 4, .bytes = 1'000'000, .time_s = 1e-3};
  EXPECT_DOUBLE_EQ(row.algorithm_bandwidth(), 1e9);
  EXPECT_DOUBLE_EQ(row.bus_bandwidth(), 1.5e9);
  EXPECT_DOUBLE_EQ(compulsory_bandwidth(row), 8e9);
}

TEST(Measure, GivesTheSameRowsOnEveryRank) {
  std::mutex mutex;
  std::vector<std::vector<Row>> of_ranks;
  comm::run_ranks(3, {}, [&](ProcessGroup& group) {
    const Series series{.shape = {.operation = Operation::all_gather}, .bytes = {4, 8, 400}, .effort = {2, 1}};
    int reported = 0;
    const std::vector<Row> rows = measure(group, series, [&](const Row&) { ++reported; });
    ASSERT_EQ(reported, rows.size());
    const std::lock_guard lock(mutex);
    of_ranks.push_back(rows);
  });
  for (const std::vector<Row>& rows : of_ranks) {
    ASSERT_EQ(rows.size(), 4);  // 4 and 8 bytes are both one element per rank; out of place and in place
    EXPECT_EQ(rows[0].bytes, 12);
    EXPECT_EQ(rows[2].bytes, 408);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].wrong, 0);
      EXPECT_GT(rows[i].time_s, 0);
      EXPECT_GE(rows[i].skew_s, 0);
      EXPECT_EQ(rows[i].time_s, of_ranks.front()[i].time_s);
      EXPECT_EQ(rows[i].in_place, i % 2 == 1);
      EXPECT_EQ(rows[i].hosts, 1);
    }
  }
}

std::vector<Row> rows_of(std::string_view algorithm, double alpha_s, double bytes_per_s) {
  std::vector<Row> rows;
  for (int64_t bytes = 64; bytes <= 64 << 20; bytes *= 4) {
    Row row{.shape = {.count = bytes / 4}, .algorithm = std::string(algorithm), .ranks = 4, .bytes = bytes};
    const cost::Sample sample = sample_of(row);
    row.time_s = static_cast<double>(sample.messages) * alpha_s + static_cast<double>(sample.bytes) / bytes_per_s;
    rows.push_back(row);
  }
  return rows;
}

TEST(Account, CountsMessagesInARow) {
  Row row{.shape = {.count = 1000}, .algorithm = "ring", .ranks = 4, .bytes = 4000};
  EXPECT_EQ(sample_of(row).messages, 6);
  EXPECT_EQ(sample_of(row).bytes, 6000);
  row.algorithm = "auto";
  EXPECT_EQ(sample_of(row).messages, 1);
  EXPECT_EQ(sample_of(row).bytes, 6000);
  row.algorithm = "direct_whole";
  EXPECT_EQ(sample_of(row).messages, 3);
  EXPECT_EQ(sample_of(row).bytes, 12'000);
}

TEST(Account, FindsWhatTheTimesWereMadeFrom) {
  for (const char* const algorithm : {"ring", "auto"}) {
    std::vector<Row> rows = rows_of(algorithm, 2e-6, 4e9);
    const auto link = fit(rows);
    ASSERT_TRUE(link.has_value());
    EXPECT_THAT(link->start_up_s, DoubleNear(2e-6, 1e-12));
    EXPECT_THAT(link->bandwidth_bytes_per_s, DoubleNear(4e9, 1));
    EXPECT_EQ(account(rows.front(), *link).bound_by, "start-up");
    EXPECT_EQ(account(rows.back(), *link).bound_by, "bandwidth");
    EXPECT_THAT(account(rows.back(), *link).predicted_s(), DoubleNear(rows.back().time_s, 1e-9));
    rows.front().skew_s = 1e-3;
    EXPECT_EQ(account(rows.front(), *link).bound_by, "skew");
  }
}

TEST(Account, GivesNothingThatTheRowsDoNotDetermine) {
  EXPECT_FALSE(fit({}).has_value());
  const std::vector<Row> rows = rows_of("auto", 1e-6, 1e9);
  EXPECT_FALSE(fit(std::span(rows).first(1)).has_value());
  Row alone{.shape = {.count = 1}, .ranks = 1, .bytes = 4, .time_s = 1e-6};
  EXPECT_FALSE(fit(std::vector{alone, alone}).has_value());
}

TEST(Fastest, IsATableThatChoosesIt) {
  std::vector<Row> rows = rows_of("ring", 5e-6, 4e9);
  for (const Row& row : rows_of("direct_whole", 1e-6, 4e9)) rows.push_back(row);
  const collective::RuleTable table = collective::parse_rules(to_string(fastest(rows)));
  const auto chosen = [&](int64_t bytes) {
    return choose({.operation = collective::Operation::all_reduce, .bytes = bytes, .ranks = 4}, table);
  };
  EXPECT_EQ(chosen(64), "direct_whole");
  EXPECT_EQ(chosen(1 << 20), "ring");
  EXPECT_EQ(chosen(int64_t{1} << 40), "ring");
  EXPECT_EQ(table.size(), 2);
  EXPECT_THROW(choose({.bytes = 64, .ranks = 5}, table), InvalidArgument);
}

TEST(Fastest, TableServesEveryOtherCallToo) {
  const collective::RuleTable own{{.max_ranks = 2, .algorithm = "ring"}};
  const auto chosen = [&](std::string_view backend, int ranks, collective::Operation operation) {
    return choose({.operation = operation, .bytes = 64, .ranks = ranks}, completed(own, backend));
  };
  EXPECT_EQ(chosen("shared_memory", 2, collective::Operation::all_reduce), "ring");
  EXPECT_EQ(chosen("shared_memory", 3, collective::Operation::all_reduce), "native");
  EXPECT_EQ(chosen("shared_memory", 2, collective::Operation::all_to_all), "native");
  EXPECT_EQ(chosen("mpi", 2, collective::Operation::all_reduce), "ring");
  EXPECT_EQ(chosen("mpi", 3, collective::Operation::all_reduce), "direct_whole");
}

TEST(Measure, RunsTheAlgorithmThatIsAskedFor) {
  comm::run_ranks(3, {}, [](ProcessGroup& group) {
    Series series{.bytes = {36}, .algorithms = {"ring"}, .out_of_place = false, .effort = {2, 1}};
    const int64_t before = group.traffic().messages_sent;
    ASSERT_EQ(measure(group, series, [](const Row&) {}).at(0).algorithm, "ring");
    ASSERT_GT(group.traffic().messages_sent, before);
    series.algorithms = {"no such"};
    ASSERT_THROW(measure(group, series, [](const Row&) {}), InvalidArgument);
    series.leave_out_refused = true;
    ASSERT_TRUE(measure(group, series, [](const Row&) {}).empty());
  });
}

TEST(MessageTime, GrowsFromAStartUp) {
  for (const int64_t bytes : {1, 300'000}) {
    const cost::LinearTime time = message_time(bytes);
    EXPECT_GT(time.at(bytes), 0);
    EXPECT_GE(time.alpha_s, 0);
    EXPECT_GE(time.beta_s, 0);
  }
}

TEST(Fastest, IsRankZerosEverywhere) {
  comm::run_ranks(3, {}, [](ProcessGroup& group) {
    const collective::RuleTable own{{.max_bytes = 100 + group.rank(), .algorithm = "ring"}};
    ASSERT_EQ(shared_table(group, own).at(0).max_bytes, 100);
  });
}

}  // namespace
}  // namespace lockstep::measure
