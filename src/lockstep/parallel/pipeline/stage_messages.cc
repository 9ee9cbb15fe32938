#include "lockstep/parallel/pipeline/stage_messages.h"

#include <ATen/ATen.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/distributed/collectives.h"
#include "lockstep/schedule/dependencies.h"

namespace lockstep::parallel {

using schedule::Action;

namespace {

std::unique_ptr<comm::ProcessGroup> whole_group(comm::ProcessGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.split(ranks, "pipeline shapes");
}

}  // namespace

StageMessages::StageMessages(const schedule::Table& table, comm::ProcessGroup& group)
    : table_(table), group_(group), headers_(whole_group(group)) {}

void StageMessages::begin_step(bool announce) {
  announce_ = announce;
  incoming_.clear();
  announced_.clear();
}

at::Tensor StageMessages::to_header(const Form& form) {
  std::vector<int64_t> words{static_cast<int64_t>(form.type), static_cast<int64_t>(form.sizes.size())};
  words.insert(words.end(), form.sizes.begin(), form.sizes.end());
  words.resize(kHeaderSize);
  return at::tensor(words, at::kLong);
}

StageMessages::Form StageMessages::from_header(const at::Tensor& header) {
  const auto* words = header.const_data_ptr<int64_t>();
  return {static_cast<at::ScalarType>(words[0]), {words + 2, words + 2 + words[1]}};
}

void StageMessages::send(const Action& send, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().to(at::kCPU).contiguous();
  const Form form{plain.scalar_type(), plain.sizes().vec()};
  const int peer = schedule::peer_of(send, table_);
  const std::string tag = to_string(send);
  if (announce_) {
    if (plain.dim() > kMostDims) {
      throw InvalidArgument(text(tag, ": a tensor of ", plain.dim(), " dims: stages pass at most ", kMostDims));
    }
    forms_[send] = form;
    sent_.push_back(isend(to_header(form), peer, *headers_, {.tag = tag}));
  } else if (form != forms_.at(send)) {
    const Form& before = forms_.at(send);
    throw InvalidArgument(
        text(tag, ": ", at::toString(form.type), " [", join(form.sizes), "] where the step before had ",
             at::toString(before.type), " [", join(before.sizes),
             "], though the inputs have the same shapes: set shapes_vary, which announces them in every step"));
  }
  sent_.push_back(isend(plain, peer, group_, {.tag = tag}));
}

void StageMessages::receive(const Action& receive) {
  if (!announce_) return post_tensor(receive, forms_.at(receive));
  const int peer = schedule::peer_of(receive, table_);
  at::Tensor header = at::empty({kHeaderSize}, at::kLong);
  const comm::Work work = irecv(header, peer, *headers_, {.tag = to_string(schedule::other_end(receive))});
  incoming_[receive] = {.header = header, .work = work};
  announced_[peer].push_back(receive);
}

void StageMessages::post_tensor(const Action& receive, const Form& form) {
  at::Tensor tensor = at::empty(form.sizes, form.type);
  // Both ends give the send's name, so a tensor can never be taken for another.
  const comm::Work work =
      irecv(tensor, schedule::peer_of(receive, table_), group_, {.tag = to_string(schedule::other_end(receive))});
  incoming_[receive] = {.tensor = tensor, .work = work};
}

at::Tensor StageMessages::take(const Action& receive) {
  auto& waiting = announced_[schedule::peer_of(receive, table_)];
  while (!incoming_.at(receive).tensor.defined()) {
    const Action next = waiting.front();
    waiting.pop_front();
    const Incoming& header = incoming_.at(next);
    header.work.wait();
    forms_[next] = from_header(header.header);
    post_tensor(next, forms_.at(next));
  }
  const Incoming arrived = incoming_.at(receive);
  incoming_.erase(receive);
  arrived.work.wait();
  return arrived.tensor;
}

void StageMessages::finish_step() {
  for (const comm::Work& work : sent_) work.wait();
  sent_.clear();
}

}  // namespace lockstep::parallel
