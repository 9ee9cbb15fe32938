#include "lockstep/cost/link.h"

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cost/linear_time.h"

namespace lockstep::cost {
namespace {

constexpr LinkPreset kPresets[] = {
    {"nvlink4_h100", 450e9},
    {"pcie5_x16", 64e9},
    {"infiniband_ndr", 50e9},
    {"ethernet_100g", 12.5e9},
};

// One end of a link in one direction, or both directions of a host's shared one.
struct End {
  bool between = false;
  int owner = 0;  // rank, or host when shared
  bool sends = false;
  auto operator<=>(const End&) const = default;
};

struct Load {
  int64_t messages = 0, bytes = 0;
};

class Pricing {
 public:
  explicit Pricing(const Network& network) : network_(network) {}

  void add(int round, int rank, int peer, bool sends, int64_t bytes) {
    const int host = host_of(rank);
    const bool between = host != host_of(peer);
    const int owner = between && network_.shared_between ? host : rank;
    Load& load = rounds_[round][{between, owner, sends}];
    ++load.messages;
    load.bytes += bytes;
  }

  TransferTime total() const {
    TransferTime sum;
    for (const auto& [round, ends] : rounds_) {
      TransferTime slowest;
      for (const auto& [end, load] : ends) {
        const TransferTime time = time_of(end, load);
        if (time.total_s() > slowest.total_s()) slowest = time;
      }
      sum.start_up_s += slowest.start_up_s;
      sum.bandwidth_s += slowest.bandwidth_s;
      sum.rounds_s += slowest.rounds_s;
    }
    return sum;
  }

 private:
  int host_of(int rank) const {
    return network_.host_of_rank.empty() ? 0 : network_.host_of_rank[static_cast<size_t>(rank)];
  }

  TransferTime time_of(const End& end, const Load& load) const {
    const Link& link = end.between ? network_.between : network_.inside;
    return {.start_up_s = static_cast<double>(load.messages) * link.start_up_s,
            .bandwidth_s = static_cast<double>(load.bytes) / link.bandwidth_bytes_per_s,
            .rounds_s = link.round_s};
  }

  const Network& network_;
  std::map<int, std::map<End, Load>> rounds_;
};

}  // namespace

std::span<const LinkPreset> link_presets() {
  return kPresets;
}

const LinkPreset& link_preset(std::string_view name) {
  std::string names;
  for (const LinkPreset& preset : kPresets) {
    if (preset.name == name) return preset;
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  throw InvalidArgument(Problem{"link", std::string(name), "must be one of " + names, ""}.message());
}

Link make_link(const LinkPreset& preset, const LinkOptions& options) {
  if (!(options.efficiency > 0 && options.efficiency <= 1)) {
    throw InvalidArgument(text("efficiency = ", options.efficiency, ": must be above 0 and at most 1"));
  }
  if (!(options.start_up_s >= 0 && options.round_s >= 0)) {
    throw InvalidArgument(
        text("start_up_s = ", options.start_up_s, ", round_s = ", options.round_s, ": must not be negative"));
  }
  return {options.start_up_s, preset.one_way_bytes_per_s * options.efficiency, options.round_s};
}

TransferTime transfer_time(const collective::Program& program, std::span<const int64_t> sizes, int64_t element_bytes,
                           const Network& network) {
  using Kind = collective::Step::Kind;
  if (!network.host_of_rank.empty() && network.host_of_rank.size() != static_cast<size_t>(program.ranks)) {
    throw InvalidArgument(text("host_of_rank = ", network.host_of_rank.size(), " entries: must have one for each of ",
                               program.ranks, " ranks"));
  }
  Pricing pricing(network);
  for (int rank = 0; rank < program.ranks; ++rank) {
    const collective::Layout layout(program, sizes, rank);
    for (const collective::Step& step : program.steps_by_rank[static_cast<size_t>(rank)]) {
      if (step.kind == Kind::copy) continue;
      const bool sends = step.kind == Kind::send;
      const int64_t elements = layout.range(sends ? step.source : step.target).size;
      if (elements > 0) pricing.add(step.round, rank, step.peer, sends, elements * element_bytes);
    }
  }
  return pricing.total();
}

Link fit_link(std::span<const Sample> samples) {
  std::vector<TimedSize> measured;
  for (const Sample& sample : samples) {
    if (!(sample.time_s > 0)) throw InvalidArgument(text("time_s = ", sample.time_s, ": must be positive"));
    measured.push_back({.size = sample.bytes, .time_s = sample.time_s, .count = sample.messages});
  }
  const LinearTime time = fit_linear_time(measured);
  if (!(time.beta_s > 0)) throw InvalidArgument("samples: longer messages take no longer; no bandwidth describes them");
  return {.start_up_s = time.alpha_s, .bandwidth_bytes_per_s = 1 / time.beta_s};
}

}  // namespace lockstep::cost
