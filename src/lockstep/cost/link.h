// What a collective program takes over links: start-up per message, bytes over bandwidth, and a constant per round.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/collective/program.h"

namespace lockstep::cost {

// A kind of link by its peak in one direction, per device, as its maker states it: bytes/s. What programs reach of it
// is the efficiency, stated apart (60 to 85 % is usual).
//   source   the makers' data sheets; many tables print NVLink 4 as 900 GB/s, which is both directions together
struct LinkPreset {
  std::string_view name;  // "nvlink4_h100"
  double one_way_bytes_per_s = 0;
};
std::span<const LinkPreset> link_presets();
const LinkPreset& link_preset(std::string_view name);  // throws InvalidArgument with the names there are

// One device's end of a link, as measured or assumed. Sending and receiving do not slow each other.
struct Link {
  double start_up_s = 0;             // alpha: per message
  double bandwidth_bytes_per_s = 0;  // one way, reached
  double round_s = 0;                // per round: waking up, looking for what came
};

struct LinkOptions {
  double efficiency = 1;  // share of the peak that is reached, above 0 and at most 1
  double start_up_s = 0;
  double round_s = 0;
};
// throws InvalidArgument for an efficiency or a time outside its range
Link make_link(const LinkPreset& preset, const LinkOptions& options = {});

struct Network {
  Link inside;                    // between ranks of one host
  Link between;                   // between hosts
  std::vector<int> host_of_rank;  // empty: all on one host
  bool shared_between = false;    // all ranks of a host share one link to the others; otherwise each has its own
};

// Where the time goes; seconds.
struct TransferTime {
  double start_up_s = 0, bandwidth_s = 0, rounds_s = 0;
  double total_s() const { return start_up_s + bandwidth_s + rounds_s; }
};

// Time of a program, all ranks starting together.
//   sizes    elements of each piece, element_bytes each
//   model    Rounds follow one another. In a round each end of a link (a rank's to its host, a rank's or a host's to
//            others) sends its messages one after another and receives at the same time, n bytes in
//            start_up + n / bandwidth; the slowest end decides. Copies and additions take no time: they are in round_s.
//            For ring all_reduce: 2 (p-1) (alpha + round) + 2 (p-1)/p S/B
//   source   Hockney 1994 (alpha and beta); Thakur, Rabenseifner and Gropp 2005
//   throws   InvalidArgument: sizes that are not the program's, a host list of another length
TransferTime transfer_time(const collective::Program& program, std::span<const int64_t> sizes, int64_t element_bytes,
                           const Network& network);

// One measured call, for fitting: messages and bytes in a row on the slowest end of a link.
struct Sample {
  int64_t messages = 0, bytes = 0;
  double time_s = 0;
};

// The start-up and bandwidth that are nearest to the samples, in the sum of squared relative errors; round_s is 0 and
// so in the start-up.
//   throws   InvalidArgument: fewer than two different sizes, a time that is not positive, or samples that no positive
//            bandwidth describes
Link fit_link(std::span<const Sample> samples);

}  // namespace lockstep::cost
