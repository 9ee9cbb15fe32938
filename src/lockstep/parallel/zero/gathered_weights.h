// Stage 3: a rank keeps its slices of the parameters. A unit's parameters are whole only while the unit is used; their
// storages then point into a buffer that the slices were gathered into, and point nowhere in between, so that using a
// parameter that was not gathered is an error that names the unit, and not a wrong number. Neither moves a version
// counter: backward finds what forward saved.
//
//   use 0      [gather 0][compute 0          ][compute 1          ]
//   use 1                [gather 1]           [gather 2]              at most two units are gathered
//
// Which unit is next is what followed in the step before.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/zero/buffer_pool.h"
#include "lockstep/parallel/zero/flat.h"
#include "lockstep/parallel/zero/shard_groups.h"

namespace lockstep::parallel {

class GatheredWeights {
 public:
  struct Options {
    bool prefetch = true;
    bool keep = false;  // gathered units stay so until the step ends
    // Writes a parameter's values into `home`, of its sizes and type.
    std::function<void(size_t parameter, const at::Tensor& home)> set_values;
  };

  // Has the parameters' values set, keeps this rank's slices and leaves the parameters without memory: at no time is
  // more than one unit whole beside what was whole before. All of it must outlive this.
  GatheredWeights(std::span<const at::Tensor> parameters, std::span<const Flat> flats, const ShardGroups& groups,
                  Options options);

  // What this rank owns of flats[flat]: [slice].
  const at::Tensor& slice(size_t flat) const { return slices_[flat]; }

  // Makes the unit's parameters whole and starts to gather the unit that will be used next. Ranks use units in the same
  // order. `training`: part of the sequence that repeats from step to step, as validation is not.
  void use(size_t unit, bool training);
  // Frees them, until they are used again.
  void release(size_t unit);
  // Starts to gather the unit, which then stays whole, whatever is released, until it is let go or the step ends.
  void hold(size_t unit);
  void let_go(size_t unit);
  // Frees every unit but those held and one that is gathered ahead.
  void release_used();
  // Values are about to change, and the sequence of uses begins anew.
  void end_step();

  size_t units() const { return units_.size(); }
  int64_t buffer_bytes() const { return pool_.bytes(); }
  int64_t gathers() const { return gathers_; }      // so far, of units
  int64_t peak_live() const { return peak_live_; }  // units that were whole or on their way at once

 private:
  struct Unit {
    std::vector<size_t> flats;
    int64_t bytes = 0;
    at::Tensor buffer;  // undefined: not gathered
    std::vector<comm::Work> works;
    bool ahead = false;  // gathered before it is used
    bool held = false;
  };

  // `home`: the parameter in the unit's buffer.
  void for_each_parameter(const Unit& unit,
                          const std::function<void(size_t parameter, const at::Tensor& home)>& visit) const;
  void keep_slices(Unit& unit);
  void take_buffer(Unit& unit, int64_t bytes);
  void start(Unit& unit, bool ahead);
  void drop(Unit& unit);

  std::span<const at::Tensor> parameters_;
  std::span<const Flat> flats_;
  const ShardGroups& groups_;
  Options options_;
  BufferPool pool_;
  std::vector<at::Tensor> slices_;
  std::vector<Unit> units_;
  int64_t largest_ = 0;  // bytes of a unit

  std::vector<size_t> sequence_;  // of uses in a step
  size_t at_ = 0;                 // the next one
  int64_t live_ = 0, peak_live_ = 0, gathers_ = 0;
};

}  // namespace lockstep::parallel
