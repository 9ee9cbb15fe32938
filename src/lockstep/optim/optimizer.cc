#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

std::unique_ptr<Optimizer> make_optimizer(const spec::TrainSpec& train, std::vector<Parameter> parameters) {
  switch (train.optimizer) {
    case spec::OptimizerKind::adamw:
      return make_adamw(
          std::move(parameters),
          {.beta1 = train.betas[0], .beta2 = train.betas[1], .eps = train.eps, .weight_decay = train.weight_decay});
    case spec::OptimizerKind::sgd:
      return make_sgd(std::move(parameters), {.momentum = train.momentum, .weight_decay = train.weight_decay});
  }
  LOCKSTEP_CHECK(false, "unknown optimizer");
}

}  // namespace lockstep::optim
