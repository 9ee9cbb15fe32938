// Whole tensors from the slices that tensor ranks hold, and all of them from the stages of a pipeline: what verify
// compares and what weight files store.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/parameters.h"
#include "lockstep/spec/plan.h"
#include "lockstep/train/record.h"

namespace lockstep::train {

class WholeTensors {
 public:
  // `tensor_group` holds this rank's peers along the tensor axis, in their order, and must outlive this.
  WholeTensors(const spec::RunPlan& plan, const mesh::Mesh& mesh, const std::vector<nn::Parameter>& parameters,
               comm::ProcessGroup& tensor_group, int world_rank);

  // `slice` has the shape of what this rank holds of the parameter: its weight, gradient or a moment. Every rank of the
  // group calls it and gets a copy of the whole, in which its own elements are its own. A scalar is returned as it is.
  at::Tensor gather(const std::string& parameter, const at::Tensor& slice) const;

  std::vector<NamedTensor> gather(std::vector<NamedTensor> slices) const;

 private:
  struct Pieces {
    std::vector<int64_t> shape;
    std::vector<mesh::Region> region_of_rank;
  };
  comm::ProcessGroup& group_;
  std::map<std::string, Pieces, std::less<>> pieces_;
};

// What the ranks of a pipeline have of their stages, by parameter ("layers.0...weight", "layers.0...weight/exp_avg"),
// in the model's order, on every rank or on `only_on` alone: the others get none. Of what several hold a rank keeps its
// own, else the first one's. Every rank of the group calls it.
std::vector<NamedTensor> of_all_stages(std::vector<NamedTensor> own, const spec::ModelSpec& model,
                                       comm::ProcessGroup& pipeline_group, std::optional<int> only_on = {});

}  // namespace lockstep::train
