#include "lockstep/collective/interpret.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "lockstep/collective/validate.h"

namespace lockstep::collective {
namespace {

using Values = std::vector<double>;
using Cell = std::optional<double>;

struct Operand {
  int rank;
  Values values;
};

[[noreturn]] void fail(int rank, const std::string& what) {
  throw InternalError(text("rank ", rank, ": ", what));
}

class Machine {
 public:
  Machine(const Program& program, std::span<const int64_t> sizes, const Interpretation& how)
      : program_(program), how_(how), ranks_(static_cast<size_t>(program.ranks)) {
    for (int rank = 0; rank < program.ranks; ++rank) {
      Rank& state = at(rank);
      state.layout.emplace(program, sizes, rank);
      for (const Buffer buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        state.memory[static_cast<size_t>(buffer)].resize(static_cast<size_t>(state.layout->length(buffer)));
      }
    }
  }

  void load(int rank, const Values& input) {
    const Held& held = program_.held(rank, Buffer::input);
    if (static_cast<int64_t>(input.size()) != at(rank).layout->length(Buffer::input)) {
      fail(rank, text("input of ", input.size(), " elements"));
    }
    auto next = input.begin();
    for (int slot = 0; slot < held.count; ++slot) {
      const Chunk piece{Buffer::input, held.first + slot * held.stride, 1};
      for (Cell* cell : cells(rank, piece)) *cell = *next++;
    }
  }

  // Until all are done; a rank's round ends when all that it awaits has come and all that it sent was taken.
  void run() {
    for (int rank = 0; rank < program_.ranks; ++rank) post_sends(rank);
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < program_.ranks; ++rank) {
        while (!done(rank) && advance(rank)) progress = true;
      }
    }
    for (int rank = 0; rank < program_.ranks; ++rank) {
      if (!done(rank)) fail(rank, text("waits for ever in ", to_string(steps(rank)[at(rank).next])));
    }
    for (const auto& [pair, queue] : channels_) {
      if (!queue.empty()) fail(pair.first, text("a message to rank ", pair.second, " that it never takes"));
    }
  }

  Values output(int rank) {
    const Held& held = program_.held(rank, Buffer::output);
    Values result;
    for (int slot = 0; slot < held.count; ++slot) {
      const Values piece = read(rank, {Buffer::output, held.first + slot * held.stride, 1}, "output");
      result.insert(result.end(), piece.begin(), piece.end());
    }
    return result;
  }

 private:
  struct Rank {
    std::optional<Layout> layout;
    std::array<std::vector<Cell>, 3> memory;
    size_t next = 0;            // first step of its round
    int64_t sent_untaken = 0;   // messages of its round that their receivers have not taken
    bool received_all = false;  // in its round
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const std::vector<Step>& steps(int rank) const { return program_.steps_by_rank[static_cast<size_t>(rank)]; }
  bool done(int rank) { return at(rank).next == steps(rank).size(); }

  std::span<const Step> round(int rank) {
    const std::span<const Step> rest = std::span(steps(rank)).subspan(at(rank).next);
    const auto end = std::ranges::find_if(rest, [&](const Step& step) { return step.round != rest.front().round; });
    return rest.first(static_cast<size_t>(end - rest.begin()));
  }

  std::vector<Cell*> cells(int rank, const Chunk& chunk) {
    std::vector<Cell*> result;
    const Held& held = program_.held(rank, chunk.buffer);
    const int first = held.slot(chunk.piece);
    for (int slot = first; slot < first + chunk.run; ++slot) {
      Chunk piece{chunk.buffer, held.first + slot * held.stride, 1};
      const bool shared = piece.buffer == Buffer::input && program_.held(rank, Buffer::output).slot(piece.piece) >= 0;
      if (how_.in_place && shared) piece.buffer = Buffer::output;
      const mesh::Range range = at(rank).layout->range(piece);
      std::vector<Cell>& memory = at(rank).memory[static_cast<size_t>(piece.buffer)];
      for (int64_t i = 0; i < range.size; ++i) result.push_back(&memory[static_cast<size_t>(range.offset + i)]);
    }
    return result;
  }

  Values read(int rank, const Chunk& chunk, const std::string& who) {
    Values values;
    for (const Cell* cell : cells(rank, chunk)) {
      if (!cell->has_value()) fail(rank, text(who, " reads what was not written"));
      values.push_back(**cell);
    }
    return values;
  }

  void write(int rank, const Chunk& chunk, const Values& values) {
    const std::vector<Cell*> targets = cells(rank, chunk);
    if (targets.size() != values.size()) fail(rank, text(values.size(), " elements for ", targets.size()));
    for (size_t i = 0; i < values.size(); ++i) *targets[i] = values[i];
  }

  void post_sends(int rank) {
    if (done(rank)) return;
    at(rank).received_all = false;
    for (const Step& step : round(rank)) {
      if (step.kind != Step::Kind::send) continue;
      Values values = read(rank, step.source, to_string(step));
      if (values.empty()) continue;
      channels_[{rank, step.peer}].push_back(std::move(values));
      ++at(rank).sent_untaken;
    }
  }

  bool can_receive_all(int rank) {
    std::map<int, size_t> wanted;
    for (const Step& step : round(rank)) {
      const bool receives = step.kind == Step::Kind::receive || step.kind == Step::Kind::receive_reduce;
      if (receives && at(rank).layout->range(step.target).size > 0) ++wanted[step.peer];
    }
    return std::ranges::all_of(wanted, [&](const auto& peer_and_count) {
      return channels_[{peer_and_count.first, rank}].size() >= peer_and_count.second;
    });
  }

  Values take(int rank, const Step& step) {
    if (at(rank).layout->range(step.target).size == 0) return {};
    std::deque<Values>& queue = channels_[{step.peer, rank}];
    Values values = std::move(queue.front());
    queue.pop_front();
    --at(step.peer).sent_untaken;
    return values;
  }

  void receive_all(int rank) {
    std::vector<std::pair<Chunk, std::vector<Operand>>> sums;
    for (const Step& step : round(rank)) {
      if (step.kind == Step::Kind::receive) write(rank, step.target, take(rank, step));
      if (step.kind == Step::Kind::copy) write(rank, step.target, read(rank, step.source, to_string(step)));
      if (step.kind != Step::Kind::receive_reduce) continue;
      auto sum = std::ranges::find(sums, step.target, [](const auto& entry) { return entry.first; });
      if (sum == sums.end()) {
        sums.push_back({step.target, {{rank, read(rank, step.source, to_string(step))}}});
        sum = std::prev(sums.end());
      }
      sum->second.push_back({step.peer, take(rank, step)});
    }
    for (auto& [target, operands] : sums) write(rank, target, reduced(rank, std::move(operands)));
    at(rank).received_all = true;
  }

  Values combined(int rank, const Operand& a, const Operand& b, bool rounds) const {
    if (a.values.size() != b.values.size()) fail(rank, text("adds ", a.values.size(), " to ", b.values.size()));
    const Operand& left = a.rank < b.rank ? a : b;
    const Operand& right = a.rank < b.rank ? b : a;
    Values result;
    for (size_t i = 0; i < left.values.size(); ++i) {
      const double sum = how_.combine(left.values[i], right.values[i]);
      result.push_back(rounds ? how_.round(sum) : sum);
    }
    return result;
  }

  Values reduced(int rank, std::vector<Operand> operands) const {
    if (program_.rounding != Rounding::once) {
      Values sum = operands[0].values;
      for (size_t i = 1; i < operands.size(); ++i) sum = combined(rank, {rank, sum}, operands[i], true);
      return sum;
    }
    std::ranges::sort(operands, {}, &Operand::rank);
    while (operands.size() > 1) {  // a balanced tree: neighbours, level by level
      std::vector<Operand> next;
      for (size_t i = 0; i < operands.size(); i += 2) {
        const bool alone = i + 1 == operands.size();
        next.push_back(alone ? operands[i]
                             : Operand{operands[i].rank, combined(rank, operands[i], operands[i + 1], false)});
      }
      operands = std::move(next);
    }
    for (double& value : operands[0].values) value = how_.round(value);
    return operands[0].values;
  }

  bool advance(int rank) {
    if (!at(rank).received_all) {
      if (!can_receive_all(rank)) return false;
      receive_all(rank);
      return true;
    }
    if (at(rank).sent_untaken > 0) return false;
    at(rank).next += round(rank).size();
    post_sends(rank);
    return true;
  }

  const Program& program_;
  const Interpretation& how_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Values>> channels_;  // from, to
};

}  // namespace

std::vector<std::vector<double>> interpret(const Program& program, std::span<const int64_t> sizes,
                                           const std::vector<std::vector<double>>& inputs, const Interpretation& how) {
  Machine machine(program, sizes, how);
  for (int rank = 0; rank < program.ranks; ++rank) machine.load(rank, inputs[static_cast<size_t>(rank)]);
  machine.run();
  std::vector<std::vector<double>> outputs;
  for (int rank = 0; rank < program.ranks; ++rank) outputs.push_back(machine.output(rank));
  return outputs;
}

}  // namespace lockstep::collective
