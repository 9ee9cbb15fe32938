// Which actions of a rank's list complete gradients. I brings those of layers that do not put them off (norms,
// embeddings), W those of layers that do, B both.
#pragma once

#include <span>
#include <vector>

#include "lockstep/schedule/table.h"

namespace lockstep::schedule {

// By action: whether it brings gradients of which its stage brings no more later in the list. These are where a
// reduction may begin while others still compute; all other backwards only add up. A B that is followed by a W alone
// is not among them: it would complete some of what it brings.
std::vector<bool> brings_last_gradients(std::span<const Action> actions);

}  // namespace lockstep::schedule
