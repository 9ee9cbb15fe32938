#include "lockstep/parallel/tensor/tensor_group.h"

#include <torch/torch.h>

#include "lockstep/distributed/collectives.h"

namespace lockstep::parallel {

using at::Tensor;

namespace {

Exchange done(Tensor result) {
  return Exchange([result = std::move(result)] { return result; });
}

}  // namespace

TensorGroup::TensorGroup(comm::ProcessGroup& group, TensorGroupOptions options) : group_(group), options_(options) {
  LOCKSTEP_CHECK(!options.sequence_parallel || options.sequence >= 1, "a sequence of ", options.sequence);
}

mesh::Range TensorGroup::positions(int rank) const {
  return mesh::split(options_.sequence, {rank, size()});
}

std::vector<int64_t> TensorGroup::counts(int64_t sequences, int64_t hidden) const {
  std::vector<int64_t> result;
  for (int rank = 0; rank < size(); ++rank) result.push_back(sequences * positions(rank).size * hidden);
  return result;
}

Tensor TensorGroup::packed(const Tensor& whole_BSH) const {
  LOCKSTEP_CHECK(whole_BSH.dim() == 3 && whole_BSH.size(1) == options_.sequence, "sizes ", whole_BSH.sizes());
  if (whole_BSH.size(0) == 1) return whole_BSH.contiguous().flatten();
  std::vector<Tensor> parts;
  for (int rank = 0; rank < size(); ++rank) {
    parts.push_back(whole_BSH.narrow(1, positions(rank).offset, positions(rank).size).flatten());
  }
  return at::cat(parts);
}

Tensor TensorGroup::unpacked(const Tensor& flat, int64_t sequences, int64_t hidden) const {
  if (sequences == 1) return flat.view({1, options_.sequence, hidden});
  std::vector<Tensor> parts = flat.split_with_sizes(counts(sequences, hidden));
  for (int rank = 0; rank < size(); ++rank) {
    Tensor& part = parts[static_cast<size_t>(rank)];
    part = part.view({sequences, positions(rank).size, hidden});
  }
  return at::cat(parts, 1);
}

Tensor TensorGroup::enter(const Tensor& part, std::string_view tag) const {
  if (!options_.sequence_parallel) return part;
  LOCKSTEP_CHECK(part.dim() == 3 && part.size(1) == positions().size, "sizes ", part.sizes());
  const int64_t sequences = part.size(0), hidden = part.size(2);
  const Tensor flat = at::empty({sequences * options_.sequence * hidden}, part.options());
  std::vector<Tensor> outputs = flat.split_with_sizes(counts(sequences, hidden));
  all_gather(outputs, part.contiguous().flatten(), group_, {.tag = tag});
  return unpacked(flat, sequences, hidden);
}

Tensor TensorGroup::leave(const Tensor& partial, std::string_view tag) const {
  if (!options_.sequence_parallel) {
    Tensor sum = partial.contiguous();
    all_reduce(sum, group_, Reduction::sum, {.tag = tag});
    return sum;
  }
  const int64_t sequences = partial.size(0), hidden = partial.size(2);
  Tensor part = at::empty({sequences, positions().size, hidden}, partial.options());
  reduce_scatter(part, packed(partial).split_with_sizes(counts(sequences, hidden)), group_, Reduction::sum,
                 {.tag = tag});
  return part;
}

Exchange TensorGroup::start_enter(const Tensor& part, std::string_view tag) const {
  if (!options_.sequence_parallel || !options_.overlap) return done(enter(part, tag));
  const int64_t sequences = part.size(0), hidden = part.size(2);
  const Tensor flat = at::empty({sequences * options_.sequence * hidden}, part.options());
  std::vector<Tensor> outputs = flat.split_with_sizes(counts(sequences, hidden));
  ListWork work = all_gather_async(outputs, part.contiguous().flatten(), group_, {.tag = tag});
  return Exchange([this, work, flat, sequences, hidden]() mutable {
    work.wait();
    return unpacked(flat, sequences, hidden);
  });
}

Exchange TensorGroup::start_leave(const Tensor& partial, std::string_view tag) const {
  if (!options_.overlap) return done(leave(partial, tag));
  if (!options_.sequence_parallel) {
    Tensor sum = partial.contiguous();
    const Work work = all_reduce_async(sum, group_, Reduction::sum, {.tag = tag});
    return Exchange([work, sum] {
      work.wait();
      return sum;
    });
  }
  const int64_t sequences = partial.size(0), hidden = partial.size(2);
  Tensor part = at::empty({sequences, positions().size, hidden}, partial.options());
  const Work work = reduce_scatter_async(part, packed(partial).split_with_sizes(counts(sequences, hidden)), group_,
                                         Reduction::sum, {.tag = tag});
  return Exchange([work, part] {
    work.wait();
    return part;
  });
}

}  // namespace lockstep::parallel
