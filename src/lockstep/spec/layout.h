// Layouts by name: what differs from one rank, joined with "-" in a fixed order.
//
//   single   dp2   dp2-acc4   dp4-fixed_tree   dp2-fp64   tp2   dp2-tp2-sp-acc2   dp2-recompute_full   dp4-zero3g2
//   pp2   dp2-tp2-pp2-v2-zero2-interleaved
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/spec/plan.h"

namespace lockstep::spec {

struct Layout {
  int64_t data = 1;                    // ranks: "dp2"
  int64_t tensor = 1;                  // ranks: "tp2"
  bool sequence_parallel = false;      // "sp"
  int64_t pipeline = 1;                // ranks: "pp2"
  std::optional<int64_t> chunks;       // stages per pipeline rank: "v2"; absent: as many as the schedule usually has
  std::optional<int64_t> zero;         // "zero3"; absent: as configured
  int64_t zero_group = 0;              // "zero3g2": 2 ranks share a copy; 0: all
  std::string schedule;                // a kind of pipeline: "gpipe"; empty: as configured
  std::optional<int64_t> accumulate;   // micro-batches per rank: "acc4"; absent: micro-batches of the configured size
  std::optional<Recompute> recompute;  // "recompute_full"; absent: as configured
  bool fixed_tree = false;             // absent: the configured reduction
  std::optional<Precision> precision;  // "bf16"; absent: as configured
  bool operator==(const Layout&) const = default;

  int world_size() const { return static_cast<int>(data * tensor * pipeline); }
};

// throws   InvalidArgument with the nearest name; Unsupported for words that a later version brings ("cp2")
Layout parse_layout(std::string_view name);

std::string to_string(const Layout& layout);

// The plan on this layout. throws InvalidArgument when "accN" does not cut the global batch into whole micro-batches.
RunPlan apply(const Layout& layout, RunPlan plan);

// How a plan on `world_size` ranks is laid out. Its micro-batches keep their configured size, which is no part of the
// name.
Layout layout_of(const RunPlan& plan, int world_size);

}  // namespace lockstep::spec
