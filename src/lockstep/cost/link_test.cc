#include "lockstep/cost/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

using collective::make_program;
using collective::Operation;
using collective::piece_sizes;
using collective::Program;
using collective::Shape;

TransferTime ring_all_reduce(int ranks, int64_t elements, int64_t element_bytes, const Link& link) {
  const Program program = make_program(Operation::all_reduce, "ring", {.ranks = ranks});
  return transfer_time(program, piece_sizes(program, elements), element_bytes, {.inside = link});
}

// Figures of document 1 of docs/documents.md, "CS336 Lecture 8", its chapters on links and on data parallelism.
TEST(Golden, TimesThatTheDocumentsGive) {
  const Link at_50_and_5us{.start_up_s = 5e-6, .bandwidth_bytes_per_s = 50.0 * 1024 * 1024 * 1024};
  // 64 MiB on 4 ranks; the text prints 1.92 ms for the bandwidth term, which is 1.875.
  const TransferTime time = ring_all_reduce(4, 64 << 20, 1, at_50_and_5us);
  EXPECT_NEAR(time.bandwidth_s, 1.875e-3, 1e-12);
  EXPECT_NEAR(time.start_up_s, 30e-6, 1e-15);
  EXPECT_NEAR(time.total_s(), 0.001905, 1e-9 * 0.001905);

  // 13B gradients in fp16 on 4 ranks: "87 ms" over NVLink, "975 ms" over InfiniBand, "3900 ms" over Ethernet.
  const auto gradients = [](int ranks, double bandwidth) {
    return ring_all_reduce(ranks, 13'000'000'000, 2, {.bandwidth_bytes_per_s = bandwidth}).total_s();
  };
  const double nvlink = link_preset("nvlink4_h100").one_way_bytes_per_s;
  EXPECT_NEAR(gradients(4, nvlink), 0.08666666666666667, 1e-10);
  EXPECT_NEAR(gradients(8, nvlink), 0.10111111111111111, 1e-10);  // the 8 cards that the text speaks of
  EXPECT_NEAR(gradients(4, 40e9), 0.975, 1e-9);
  EXPECT_NEAR(gradients(4, make_link(link_preset("infiniband_ndr"), {.efficiency = 0.8}).bandwidth_bytes_per_s), 0.975,
              1e-9);
  EXPECT_NEAR(gradients(4, make_link(link_preset("ethernet_100g"), {.efficiency = 0.8}).bandwidth_bytes_per_s), 3.9,
              1e-9);
}

// The same document's table of links mixes one-way and two-way figures: NVLink's 900 is both ways.
TEST(Golden, PresetsAreOneWayPerDevice) {
  EXPECT_EQ(link_preset("nvlink4_h100").one_way_bytes_per_s, 450e9);
  EXPECT_EQ(link_preset("pcie5_x16").one_way_bytes_per_s, 64e9);
  EXPECT_EQ(link_preset("infiniband_ndr").one_way_bytes_per_s, 50e9);
  EXPECT_EQ(link_preset("ethernet_100g").one_way_bytes_per_s, 12.5e9);
  EXPECT_EQ(link_preset("nvlink4_h100").one_way_bytes_per_s / link_preset("infiniband_ndr").one_way_bytes_per_s, 9);
}

TEST(TransferTime, EachRoundCostsItsConstant) {
  const Link link{.bandwidth_bytes_per_s = 1e9, .round_s = 1e-6};
  EXPECT_NEAR(ring_all_reduce(4, 4000, 1, link).rounds_s, 6e-6, 1e-15);
  EXPECT_EQ(ring_all_reduce(4, 0, 1, link).total_s(), 0);
  EXPECT_EQ(ring_all_reduce(1, 4000, 1, link).total_s(), 0);
}

TEST(TransferTime, FewRoundsWinWhenShortAndFewBytesWhenLong) {
  const Link link{.start_up_s = 1e-5, .bandwidth_bytes_per_s = 1e9};
  const auto time = [&](std::string_view algorithm, int64_t bytes) {
    const Program program = make_program(Operation::all_reduce, algorithm, {.ranks = 16});
    return transfer_time(program, piece_sizes(program, bytes), 1, {.inside = link}).total_s();
  };
  EXPECT_LT(time("recursive_whole", 64), time("ring", 64));
  EXPECT_GT(time("recursive_whole", 1 << 30), time("ring", 1 << 30));
  EXPECT_GT(time("naive", 1 << 30), 7 * time("ring", 1 << 30));
}

TEST(TransferTime, LinksBetweenHostsDecide) {
  const Shape shape{.ranks = 4, .host_of_rank = {0, 0, 1, 1}};
  Network network{.inside = {.bandwidth_bytes_per_s = 1e12},
                  .between = {.bandwidth_bytes_per_s = 1e9},
                  .host_of_rank = shape.host_of_rank};
  const auto time = [&](std::string_view algorithm) {
    const Program program = make_program(Operation::all_reduce, algorithm, shape);
    return transfer_time(program, piece_sizes(program, 1'000'000'000), 1, network).total_s();
  };
  EXPECT_NEAR(time("ring"), 1.5, 1e-2);
  EXPECT_NEAR(time("hierarchical"), 0.5, 1e-2);  // S/2 on each rank's own link
  network.shared_between = true;
  EXPECT_NEAR(time("ring"), 1.5, 1e-2);
  EXPECT_NEAR(time("hierarchical"), 1.0, 1e-2);
}

TEST(FitLink, FindsWhatTheSamplesWereMadeFrom) {
  std::vector<Sample> samples;
  for (int64_t bytes = 4; bytes <= 1 << 26; bytes *= 4) {
    samples.push_back({6, bytes, 6 * 3e-6 + static_cast<double>(bytes) / 5e9});
  }
  const Link link = fit_link(samples);
  EXPECT_NEAR(link.start_up_s, 3e-6, 1e-12);
  EXPECT_NEAR(link.bandwidth_bytes_per_s, 5e9, 1);
}

TEST(FitLink, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(fit_link({}), InvalidArgument);
  EXPECT_THROW(fit_link(std::vector<Sample>{{1, 8, 1e-6}, {1, 8, 2e-6}}), InvalidArgument);
  EXPECT_THROW(fit_link(std::vector<Sample>{{1, 8, 0}, {1, 16, 1e-6}}), InvalidArgument);
  EXPECT_THROW(fit_link(std::vector<Sample>{{1, 1, 2e-3}, {1, 1'000'000, 1e-3}}), InvalidArgument);
}

TEST(Link, MistakesAreNamed) {
  try {
    link_preset("nvlink");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "link = nvlink: must be one of nvlink4_h100, pcie5_x16, infiniband_ndr, ethernet_100g");
  }
  EXPECT_THROW(make_link(link_preset("pcie5_x16"), {.efficiency = 0}), InvalidArgument);
  EXPECT_THROW(make_link(link_preset("pcie5_x16"), {.efficiency = 1.2}), InvalidArgument);
  EXPECT_THROW(make_link(link_preset("pcie5_x16"), {.start_up_s = -1}), InvalidArgument);
  const Program program = make_program(Operation::all_reduce, "ring", {.ranks = 3});
  EXPECT_THROW(transfer_time(program, piece_sizes(program, 3), 1, {.host_of_rank = {0, 1}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::cost
