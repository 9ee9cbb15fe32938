#include "lockstep/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/document_index.h"
#include "lockstep/data/permutation.h"

namespace lockstep::data {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(Permutation, HoldsEachElementOnce) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const Permutation order(size, seed, "test");
      std::vector<int> seen(static_cast<size_t>(size), 0);
      for (int64_t place = 0; place < size; ++place) ++seen.at(static_cast<size_t>(order.at(place)));
      ASSERT_THAT(seen, Each(1)) << size << " elements, seed " << seed;
    }
  }
}

TEST(Permutation, StaysInsideWhenHuge) {
  const int64_t size = (int64_t{1} << 40) + 12345;
  const Permutation order(size, 1, "test");
  std::set<int64_t> seen;
  for (int64_t place = size - 1000; place < size; ++place) {
    const int64_t element = order.at(place);
    EXPECT_GE(element, 0);
    EXPECT_LT(element, size);
    EXPECT_TRUE(seen.insert(element).second);
  }
}

// Each of 10 elements should stand at each place in a tenth of the orders: with 4000 orders 400 +- 19.
TEST(Permutation, SpreadsElementsOverPlaces) {
  constexpr int kSize = 10, kOrders = 4000;
  std::map<std::pair<int64_t, int64_t>, int> count;
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    const Permutation order(kSize, seed, "test");
    for (int64_t place = 0; place < kSize; ++place) ++count[{place, order.at(place)}];
  }
  for (int64_t place = 0; place < kSize; ++place) {
    for (int64_t element = 0; element < kSize; ++element) EXPECT_NEAR((count[{place, element}]), 400, 100);
  }
}

TEST(Permutation, DependsOnSeedAndName) {
  const auto order = [](uint64_t seed, std::string_view name) {
    const Permutation permutation(100, seed, name);
    std::vector<int64_t> result;
    for (int64_t place = 0; place < 100; ++place) result.push_back(permutation.at(place));
    return result;
  };
  EXPECT_EQ(order(1, "a"), order(1, "a"));
  EXPECT_NE(order(1, "a"), order(2, "a"));
  EXPECT_NE(order(1, "a"), order(1, "b"));
}

// DATA-01: sizes only, no data. In 32 bits the last end would be -1073741824.
TEST(DocumentIndex, CountsBeyond32Bits) {
  const DocumentIndex index({int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 30});
  EXPECT_EQ(index.end(2), 3221225472);
  EXPECT_EQ(index.total(), 3221225472);
  for (int64_t document = 0; document < index.documents(); ++document) {
    EXPECT_LT(index.begin(document), index.end(document));
    EXPECT_EQ(index.document_of(index.begin(document)), document);
    EXPECT_EQ(index.document_of(index.end(document) - 1), document);
  }
  EXPECT_EQ(text(index.total()), "3221225472");
}

TEST(DocumentIndex, FindsDocumentsBetweenEmptyOnes) {
  const DocumentIndex index({0, 2, 0, 0, 3, 0});
  EXPECT_EQ(index.document_of(0), 1);
  EXPECT_EQ(index.document_of(1), 1);
  EXPECT_EQ(index.document_of(2), 4);
  EXPECT_EQ(index.document_of(4), 4);
  EXPECT_EQ(index.begin(5), index.end(5));
}

TEST(DocumentIndex, RefusesSizesThatDoNotSum) {
  EXPECT_THROW(DocumentIndex({5, -1}), InvalidArgument);
  EXPECT_THROW(DocumentIndex({int64_t{1} << 62, int64_t{1} << 62}), InvalidArgument);
}

TEST(TokenRange, ASequenceNeedsOneTokenMore) {
  EXPECT_EQ((TokenRange{0, 0}).sequences(4), 0);
  EXPECT_EQ((TokenRange{0, 4}).sequences(4), 0);
  EXPECT_EQ((TokenRange{0, 5}).sequences(4), 1);
  EXPECT_EQ((TokenRange{10, 19}).sequences(4), 2);
}

TEST(Split, PutsValidationAtTheEndWithoutOverlap) {
  const Parts parts = split({.corpus_size = 1000, .validation_fraction = 0.1, .sequence_length = 8, .global_batch = 4});
  EXPECT_EQ(parts.train, (TokenRange{0, 900}));
  EXPECT_EQ(parts.validation, (TokenRange{900, 1000}));
  const int64_t last_start = (parts.train.sequences(8) - 1) * 8;
  EXPECT_LT(last_start + 8, parts.validation.begin) << "the last target of training is training's";
}

std::string refusal(const PartsOptions& options) {
  try {
    split(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Split, RefusesACorpusThatIsTooShort) {
  EXPECT_THAT(refusal({.corpus_size = 32, .sequence_length = 8, .global_batch = 4}), HasSubstr("it needs 33"));
  EXPECT_EQ(refusal({.corpus_size = 33, .sequence_length = 8, .global_batch = 4}), "accepted");
  EXPECT_THAT(refusal({.corpus_size = 1000, .validation_fraction = 0.005, .sequence_length = 8, .global_batch = 4}),
              HasSubstr("leaves 5 of 1000 tokens, less than one sequence of 8"));
}

// Deals a step's places as micro-batches to ranks and gives what each rank consumes.
std::vector<std::vector<int64_t>> deal(const Sampler& sampler, int64_t step, int64_t microbatch, int ranks,
                                       int64_t global_batch) {
  std::vector<std::vector<int64_t>> by_rank(static_cast<size_t>(ranks));
  const int64_t microbatches = global_batch / microbatch, per_rank = microbatches / ranks;
  for (int64_t m = 0; m < microbatches; ++m) {
    for (int64_t row = 0; row < microbatch; ++row) {
      by_rank[static_cast<size_t>(m / per_rank)].push_back(sampler.sequence(step, m * microbatch + row));
    }
  }
  return by_rank;
}

// DATA-02: 10 samples, micro-batch 2, three ranks. Buggy samplers gave the ranks 2, 1 and 1 batches of an epoch.
TEST(Sampler, RanksAgreeOnTheEpochAndShareNoSample) {
  const Sampler sampler({.num_sequences = 10, .global_batch = 6, .seed = 1});
  EXPECT_EQ(sampler.steps_per_epoch(), 1);
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(sampler.epoch(step), step);
    std::set<int64_t> all;
    for (const std::vector<int64_t>& samples : deal(sampler, step, 2, 3, 6)) {
      EXPECT_EQ(samples.size(), 2u) << "each rank has one micro-batch";
      all.insert(samples.begin(), samples.end());
    }
    EXPECT_EQ(all.size(), 6u) << "consumed in step " << step;
  }
}

TEST(Sampler, AnEpochRepeatsNothingAndTheNextHasAnotherOrder) {
  for (const int64_t sequences : {4, 7, 64, 101}) {
    const Sampler sampler({.num_sequences = sequences, .global_batch = 4, .seed = 3});
    std::vector<std::vector<int64_t>> epochs(3);
    for (int64_t step = 0; step < 3 * sampler.steps_per_epoch(); ++step) {
      for (int64_t place = 0; place < 4; ++place) {
        epochs[static_cast<size_t>(sampler.epoch(step))].push_back(sampler.sequence(step, place));
      }
    }
    for (const std::vector<int64_t>& epoch : epochs) {
      EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), epoch.size());
      EXPECT_EQ(epoch.size(), static_cast<size_t>(sequences / 4 * 4));
    }
    EXPECT_NE(epochs[1], epochs[2]);
  }
}

TEST(Sampler, TheOrderIsThatOfTheSeedWhateverTheRanksAndWhereverOneStarts) {
  const SamplerOptions options{.num_sequences = 100, .global_batch = 24, .seed = 5};
  const Sampler sampler(options), resumed(options);
  for (int64_t step = 9; step >= 0; --step) {  // no step needs the one before
    std::vector<int64_t> expected;
    for (int64_t place = 0; place < 24; ++place) expected.push_back(sampler.sequence(step, place));
    for (const auto& [microbatch, ranks] :
         std::vector<std::pair<int64_t, int>>{{24, 1}, {3, 2}, {2, 4}, {1, 3}, {6, 4}}) {
      std::vector<int64_t> joined;
      for (const auto& samples : deal(resumed, step, microbatch, ranks, 24)) {
        joined.insert(joined.end(), samples.begin(), samples.end());
      }
      EXPECT_EQ(joined, expected);
    }
  }
  const Sampler other({.num_sequences = 100, .global_batch = 24, .seed = 6});
  EXPECT_NE(other.sequence(0, 0) + 100 * other.sequence(0, 1), sampler.sequence(0, 0) + 100 * sampler.sequence(0, 1));
}

}  // namespace
}  // namespace lockstep::data
