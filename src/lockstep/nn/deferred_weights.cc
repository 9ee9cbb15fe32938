#include "lockstep/nn/deferred_weights.h"

#include <torch/torch.h>

#include <unordered_map>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using torch::autograd::AutogradContext;

// The work of one drain: while one layer's gradients are computed, the next one's exchanges are under way.
class Drain : public torch::CustomClassHolder {
 public:
  explicit Drain(std::vector<WeightWork> works) : works_(std::move(works)), started_(works_.size()) {}

  const std::vector<WeightWork>& works() const { return works_; }

  Tensors gradients(size_t index) {
    start(index);
    start(index + 1);
    const auto compute = std::exchange(started_[index], nullptr);
    return compute();
  }

 private:
  void start(size_t index) {
    if (index >= works_.size() || !works_[index].start) return;
    started_[index] = std::exchange(works_[index].start, nullptr)(std::exchange(works_[index].kept, {}));
  }

  std::vector<WeightWork> works_;
  std::vector<std::function<Tensors()>> started_;
};

// A node that leads to a layer's parameters: its backward makes their gradients.
class Deliver : public torch::autograd::Function<Deliver> {
 public:
  static Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Drain>& drain, int64_t index,
                        at::TensorList parameters) {
    context->saved_data["drain"] = c10::IValue::make_capsule(drain);
    context->saved_data["index"] = index;
    return at::empty({0}, parameters.front().options());
  }

  static Tensors backward(AutogradContext* context, const Tensors& /*gradients*/) {
    const auto holder = context->saved_data["drain"].toCapsule();
    Tensors result(2);  // the first arguments are no tensors
    for (Tensor& gradient :
         static_cast<Drain&>(*holder).gradients(static_cast<size_t>(context->saved_data["index"].toInt()))) {
      result.push_back(std::move(gradient));
    }
    return result;
  }
};

}  // namespace

DeferredWeights::Deferral::Deferral(DeferredWeights& owner, Key key) : owner_(owner) {
  LOCKSTEP_CHECK(owner.current_ == nullptr, "one backward inside of another");
  const auto [place, is_new] = owner.works_.try_emplace(key);
  LOCKSTEP_CHECK(is_new, "stage ", key.stage, ", micro-batch ", key.microbatch, ": put off before and not drained");
  owner.current_ = &place->second;
}

void DeferredWeights::put_off(WeightWork work) {
  LOCKSTEP_CHECK(deferring(), "outside of a deferral");
  if (!work.parameters.empty()) current_->push_back(std::move(work));
}

void DeferredWeights::drain(Key key) {
  auto found = works_.extract(key);
  LOCKSTEP_CHECK(!found.empty(), "stage ", key.stage, ", micro-batch ", key.microbatch, ": nothing was put off");
  if (found.mapped().empty()) return;
  const auto drain = c10::make_intrusive<Drain>(std::move(found.mapped()));
  const torch::AutoGradMode grad_mode(true);
  Tensors ends, gradients;
  // Of nodes that are ready, autograd runs the one made last.
  for (size_t index = drain->works().size(); index-- > 0;) {
    ends.push_back(
        Deliver::apply(drain, static_cast<int64_t>(index), at::TensorList(drain->works()[index].parameters)));
    gradients.push_back(ends.back().detach());
  }
  torch::autograd::backward(ends, gradients);
}

int64_t DeferredWeights::kept_bytes() const {
  std::unordered_map<const void*, int64_t> storages;
  for (const auto& [key, works] : works_) {
    for (const WeightWork& work : works) {
      for (const Tensor& tensor : work.kept) {
        storages[tensor.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(tensor.storage().nbytes());
      }
    }
  }
  int64_t total = 0;
  for (const auto& [storage, bytes] : storages) total += bytes;
  return total;
}

}  // namespace lockstep::nn
