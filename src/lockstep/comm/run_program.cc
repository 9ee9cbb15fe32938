#include "lockstep/comm/run_program.h"

#include <algorithm>
#include <array>

#include "lockstep/base/units.h"
#include "lockstep/comm/call_info.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

using collective::Chunk;
using collective::Step;
using Kind = collective::Step::Kind;

class Runner {
 public:
  Runner(const collective::Program& program, std::span<const int64_t> sizes, const Call& call, int rank,
         Workspace& workspace, const Exchange& exchange)
      : program_(program),
        layout_(program, sizes, rank),
        call_(call),
        rank_(rank),
        type_(info_of(call).type),
        workspace_(workspace),
        exchange_(exchange) {
    bases_ = {input(), static_cast<char*>(call.output.data),
              workspace.scratch(length_bytes(collective::Buffer::scratch))};
  }

  collective::Traffic run() {
    std::span<const Step> rest = program_.steps_by_rank[static_cast<size_t>(rank_)];
    while (!rest.empty()) {
      const int round = rest.front().round;
      const auto end = std::ranges::find_if(rest, [&](const Step& step) { return step.round != round; });
      const auto steps = static_cast<size_t>(end - rest.begin());
      run_round(rest.first(steps));
      rest = rest.subspan(steps);
    }
    if (call_.reduction == Reduction::average && program_.rounding == collective::Rounding::per_hop) {
      divide(type_, bases_[1], layout_.length(collective::Buffer::output), program_.ranks);
    }
    return traffic_;
  }

 private:
  struct Operand {
    int rank;
    const void* data;
  };

  int64_t bytes_of(int64_t elements) const { return elements * element_size(type_); }
  int64_t length_bytes(collective::Buffer buffer) const { return bytes_of(layout_.length(buffer)); }

  // What arrives in place must not replace what is still to be sent.
  char* input() {
    auto* const data = static_cast<char*>(call_.input.data);
    if (call_.operation != Operation::all_to_all || call_.input.data != call_.output.data) return data;
    char* const own = workspace_.input(call_.input.bytes());
    copy(own, data, call_.input.bytes(), false);
    return own;
  }

  int64_t elements(const Chunk& chunk) const { return layout_.range(chunk).size; }
  char* address(const Chunk& chunk) const {
    return bases_[static_cast<size_t>(chunk.buffer)] + bytes_of(layout_.range(chunk).offset);
  }

  void run_round(std::span<const Step> steps) {
    int64_t operand_bytes = 0;
    for (const Step& step : steps) {
      if (step.kind == Kind::receive_reduce)
        operand_bytes += round_up(bytes_of(elements(step.target)), kAlignmentBytes);
    }
    char* operand = workspace_.operands(operand_bytes);
    messages_.clear();
    operands_.assign(steps.size(), nullptr);
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      switch (step.kind) {
        case Kind::send:
          add_message(Operation::send, step.peer, address(step.source), elements(step.source));
          break;
        case Kind::receive:
          add_message(Operation::receive, step.peer, address(step.target), elements(step.target));
          break;
        case Kind::receive_reduce:
          operands_[i] = operand;
          add_message(Operation::receive, step.peer, operand, elements(step.target));
          operand += round_up(bytes_of(elements(step.target)), kAlignmentBytes);
          break;
        case Kind::copy:
          copy(address(step.target), address(step.source), bytes_of(elements(step.target)), false);
          break;
      }
    }
    if (!messages_.empty()) exchange_(messages_);
    reduce_round(steps);
  }

  void add_message(Operation operation, int peer, char* data, int64_t count) {
    if (count == 0) return;
    messages_.push_back({operation, {.data = data, .count = count, .type = type_}, peer});
    const bool sends = operation == Operation::send;
    ++(sends ? traffic_.messages_sent : traffic_.messages_received);
    (sends ? traffic_.bytes_sent : traffic_.bytes_received) += bytes_of(count);
  }

  void reduce_round(std::span<const Step> steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (operands_[i] == nullptr || elements(steps[i].target) == 0) continue;
      if (program_.rounding == collective::Rounding::per_hop) {
        const Operand own{rank_, address(steps[i].source)}, other{steps[i].peer, operands_[i]};
        const Reduction hop = call_.reduction == Reduction::average ? Reduction::sum : call_.reduction;
        reduce_to(steps[i].target, {own, other}, hop);
        continue;
      }
      std::vector<Operand> all{{rank_, address(steps[i].source)}};
      for (size_t j = i; j < steps.size(); ++j) {  // every rank's, in this round
        if (operands_[j] == nullptr || steps[j].target != steps[i].target) continue;
        all.push_back({steps[j].peer, operands_[j]});
        operands_[j] = nullptr;
      }
      reduce_to(steps[i].target, std::move(all), call_.reduction);
    }
  }

  void reduce_to(const Chunk& target, std::vector<Operand> operands, Reduction reduction) const {
    std::ranges::sort(operands, {}, &Operand::rank);
    std::vector<const void*> inputs;
    for (const Operand& operand : operands) inputs.push_back(operand.data);
    void* const to = address(target);
    reduce(type_, reduction, inputs, {&to, 1}, elements(target), false);
  }

  const collective::Program& program_;
  const collective::Layout layout_;
  const Call& call_;
  const int rank_;
  const DataType type_;
  Workspace& workspace_;
  const Exchange& exchange_;
  std::array<char*, 3> bases_{};  // by collective::Buffer

  std::vector<Message> messages_;      // of the round
  std::vector<const char*> operands_;  // by step of the round: what a receive_reduce receives, until it is added
  collective::Traffic traffic_;
};

}  // namespace

char* Workspace::grown(Memory& memory, int64_t bytes) {
  if (memory == nullptr || static_cast<int64_t>(memory->size()) < bytes) {
    memory = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes));
  }
  return memory->data();
}

collective::Traffic run_program(const collective::Program& program, std::span<const int64_t> sizes, const Call& call,
                                int rank, Workspace& workspace, const Exchange& exchange) {
  return Runner(program, sizes, call, rank, workspace, exchange).run();
}

}  // namespace lockstep::comm
