#include "lockstep/schedule/last_gradients.h"

#include <map>

namespace lockstep::schedule {

std::vector<bool> brings_last_gradients(std::span<const Action> actions) {
  struct Later {
    bool put_off = false, not_put_off = false;
  };
  std::map<int, Later> of_stage;
  std::vector<bool> result(actions.size(), false);
  for (size_t i = actions.size(); i-- > 0;) {
    const bool put_off = completes_gradient(actions[i].kind), not_put_off = makes_input_gradient(actions[i].kind);
    if (!put_off && !not_put_off) continue;
    Later& later = of_stage[actions[i].stage];
    result[i] = !(put_off && later.put_off) && !(not_put_off && later.not_put_off);
    later.put_off = later.put_off || put_off;
    later.not_put_off = later.not_put_off || not_put_off;
  }
  return result;
}

}  // namespace lockstep::schedule
