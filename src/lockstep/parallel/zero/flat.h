// Parameters that are sharded together lie one after another in a flat range, of which each rank of a shard group owns
// a slice:
//
//   | p0          | pad | p1                  | pad | p2 | pad          |
//   | slice of rank 0   | slice of rank 1     | slice of rank 2         |
//
// Parameters and slices begin on 64-byte boundaries, and so do pieces: what a slice has of one parameter. Optimizers
// update pieces, each with its parameter's name and decay. A slice may hold no piece at all.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/parallel/data/buckets.h"

namespace lockstep::parallel {

struct Piece {
  size_t parameter = 0;      // index into the list of parameters
  int64_t in_parameter = 0;  // first element
  int64_t in_slice = 0;      // where it begins there
  int64_t count = 0;         // elements, at least 1
};

struct Flat {
  BucketPlan plan;            // without flags; plan.elements is a multiple of the ranks
  std::string name;           // "bucket 0", "layers.3": what errors and traces show
  size_t unit = 0;            // stage 3: of which unit
  bool trained = true;        // parameters that require gradients and those that do not are never in one flat
  int64_t slice = 0;          // elements of one rank
  std::vector<Piece> pieces;  // of this rank

  int64_t bytes() const { return plan.elements * static_cast<int64_t>(at::elementSize(plan.type)); }
};

// One flat per bucket (buckets.h), in the order given.
std::vector<Flat> flats_of_buckets(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                   int64_t bucket_bytes, mesh::Piece rank);

// Of one unit's parameters: a flat for each type, device and whether they are trained.
std::vector<Flat> flats_of_unit(std::span<const at::Tensor> parameters, std::span<const size_t> order,
                                const std::string& name, mesh::Piece rank);

}  // namespace lockstep::parallel
