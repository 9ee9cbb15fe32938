#include "lockstep/parallel/tensor/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/comm/in_process/in_process.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/modules.h"

namespace lockstep::parallel {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

void on_ranks(int ranks, const std::function<void(comm::ProcessGroup&)>& body) {
  comm::run_ranks(ranks, {.deadline = std::chrono::seconds(60)}, [&](comm::ProcessGroup& group) {
    at::set_num_threads(1);
    body(group);
  });
}

Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

// This rank's columns of whole logits; what is behind the vocabulary is noise that must not matter.
Tensor own_columns(const Tensor& whole, const comm::ProcessGroup& group) {
  const int64_t slice = vocabulary_slice(whole.size(1), group.size());
  const Tensor padded =
      at::cat({whole, at::full({whole.size(0), slice * group.size() - whole.size(1)}, 99.0, at::kDouble)}, 1);
  return padded.narrow(1, group.rank() * slice, slice).clone();
}

TEST(CrossEntropy, EqualsOneProcessForAnyVocabularyAndRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const int64_t vocab : {1, 2, 5, 6, 9, 16}) {
      on_ranks(ranks, [&](comm::ProcessGroup& group) {
        const std::string what = text(ranks, " ranks, vocabulary of ", vocab);
        const Tensor whole = (random({6, vocab}, 1) * 30).requires_grad_();
        Tensor targets = at::arange(6, at::kLong).remainder(vocab);
        targets[4] = spec::kIgnoredTarget;
        const Tensor expected = at::cross_entropy_loss(whole, targets, {}, at::Reduction::None, spec::kIgnoredTarget);
        (expected * random({6}, 2)).sum().backward();
        const Tensor logits = own_columns(whole.detach(), group).requires_grad_();
        const Tensor losses = vocab_parallel_cross_entropy(logits, targets, {.vocab = vocab}, group);
        EXPECT_LE((losses - expected).abs().max().item<double>(), 1e-12) << what;
        EXPECT_EQ(losses[4].item<double>(), 0) << what;
        (losses * random({6}, 2)).sum().backward();
        const int64_t slice = vocabulary_slice(vocab, ranks);
        const Tensor gradient =
            at::constant_pad_nd(whole.grad(), {0, slice * ranks - vocab}).narrow(1, group.rank() * slice, slice);
        EXPECT_LE((logits.grad() - gradient).abs().max().item<double>(), 1e-12) << what;
      });
    }
  }
}

// GRAD-05: ln 16 when gathered logits are taken for slices.
TEST(CrossEntropy, TakesSlicesAndRefusesGatheredLogits) {
  on_ranks(2, [](comm::ProcessGroup& group) {
    const Tensor target = at::full({1}, 3, at::kLong);
    const Tensor loss = vocab_parallel_cross_entropy(at::zeros({1, 4}, at::kDouble), target, {.vocab = 8}, group);
    EXPECT_NEAR(loss.item<double>(), std::log(8.0), 1e-12);
    try {
      vocab_parallel_cross_entropy(at::zeros({1, 8}, at::kDouble), target, {.vocab = 8}, group);
      FAIL() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("logits = 8 columns: each of 2 ranks gives its own 4 of 8, not gathered"));
    }
  });
}

// GRAD-07: shards that do not own the target have a gradient too.
TEST(CrossEntropy, GradientIsSoftmaxMinusOneHotOnEveryShard) {
  on_ranks(2, [](comm::ProcessGroup& group) {
    const Tensor logits = at::zeros({1, 2}, at::kDouble).requires_grad_();
    vocab_parallel_cross_entropy(logits, at::zeros({1}, at::kLong), {.vocab = 4}, group).sum().backward();
    const Tensor expected = group.rank() == 0 ? torch::tensor({{-0.75, 0.25}}) : torch::tensor({{0.25, 0.25}});
    EXPECT_LE((logits.grad() - expected).abs().max().item<double>(), 1e-15) << logits.grad();
  });
}

// GRAD-07, its check of every parameter: finite differences of the loss in each element of head and hidden.
TEST(CrossEntropy, GradientsOfHeadAndHiddenAreThoseOfFiniteDifferences) {
  on_ranks(2, [](comm::ProcessGroup& ranks) {
    const TensorGroup group(ranks);
    const Tensor head = random({5, 3}, 1), hidden = random({4, 3}, 2),
                 targets = torch::tensor({0, 4, 2, -1}, at::kLong);
    const auto loss_of = [&](const Tensor& head_VH, const Tensor& hidden_TH) {
      const Tensor slice = at::constant_pad_nd(head_VH, {0, 0, 0, 1}).narrow(0, group.rank() * 3, 3).clone();
      const nn::Projection projection{slice.requires_grad_(), {}};
      const Tensor logits = column_linears(hidden_TH, {&projection, 1}, group, "head").front();
      return std::pair(vocab_parallel_cross_entropy(logits, targets, {.vocab = 5}, ranks).sum(), slice);
    };
    const Tensor leaf = hidden.clone().requires_grad_();
    const auto [loss, slice] = loss_of(head, leaf);
    loss.backward();
    constexpr double kStep = 1e-6;
    const auto difference = [&](const Tensor& moved, int64_t element) {
      const double before = moved.view(-1)[element].item<double>();
      const auto at_value = [&](double value) {
        moved.view(-1)[element] = value;
        return loss_of(head, hidden.clone().requires_grad_()).first.item<double>();
      };
      const double slope = (at_value(before + kStep) - at_value(before - kStep)) / (2 * kStep);
      moved.view(-1)[element] = before;
      return slope;
    };
    for (int64_t i = 0; i < hidden.numel(); ++i) {
      EXPECT_NEAR(leaf.grad().view(-1)[i].item<double>(), difference(hidden, i), 1e-8) << "hidden " << i;
    }
    for (int64_t i = 0; i < head.numel(); ++i) {
      const double slope = difference(head, i);
      const int64_t row = i / 3 - group.rank() * 3;
      if (row < 0 || row >= 3) continue;
      EXPECT_NEAR(slice.grad()[row][i % 3].item<double>(), slope, 1e-8) << "head " << i;
    }
  });
}

TEST(CrossEntropy, RefusesTargetsOutsideOfTheVocabulary) {
  on_ranks(2, [](comm::ProcessGroup& group) {
    for (const int64_t target : {7, -2}) {
      EXPECT_THROW(vocab_parallel_cross_entropy(at::zeros({1, 4}, at::kDouble), at::full({1}, target, at::kLong),
                                                {.vocab = 7}, group),
                   InvalidArgument);
    }
  });
}

TEST(Embedding, EqualsOneProcessForAnyVocabularyAndRanks) {
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t vocab : {1, 4, 7}) {
      for (const bool sequence_parallel : {false, true}) {
        on_ranks(ranks, [&](comm::ProcessGroup& ranks_group) {
          const TensorGroup group(ranks_group, {.sequence_parallel = sequence_parallel, .sequence = 5});
          const Tensor tokens = at::arange(10, at::kLong).remainder(vocab).view({2, 5});
          const Tensor whole = random({vocab, 3}, 1).requires_grad_();
          const Tensor expected = at::embedding(whole, tokens);
          (expected * random({2, 5, 3}, 2)).sum().backward();
          const int64_t slice = vocabulary_slice(vocab, ranks), padding = slice * ranks - vocab;
          const auto own = [&](const Tensor& rows) {
            return at::constant_pad_nd(rows.detach(), {0, 0, 0, padding})
                .narrow(0, group.rank() * slice, slice)
                .clone();
          };
          const Tensor table = own(whole).requires_grad_();
          const Tensor found = vocab_parallel_embedding(tokens, table, vocab, group);
          const auto positions = sequence_parallel ? group.positions() : mesh::Range{0, 5};
          EXPECT_TRUE(at::equal(found, expected.narrow(1, positions.offset, positions.size)));
          (found * random({2, 5, 3}, 2).narrow(1, positions.offset, positions.size)).sum().backward();
          EXPECT_LE((table.grad() - own(whole.grad())).abs().max().item<double>(), 1e-15);
          EXPECT_THROW(vocab_parallel_embedding(tokens + vocab, table, vocab, group), InvalidArgument);
        });
      }
    }
  }
}

TEST(Embedding, ModulePadsWithZeros) {
  on_ranks(3, [](comm::ProcessGroup& group) {
    VocabParallelEmbedding embedding(7, 4, group);
    EXPECT_EQ(embedding->weight.size(0), 3);
    if (group.rank() == 2) EXPECT_TRUE(at::equal(embedding->weight.narrow(0, 1, 2), at::zeros({2, 4})));
    EXPECT_EQ(embedding->forward(at::zeros({2, 5}, at::kLong)).sizes(), (std::vector<int64_t>{2, 5, 4}));
  });
}

}  // namespace
}  // namespace lockstep::parallel
