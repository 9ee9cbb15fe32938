// The messages of one pipeline rank: activations and their gradients, from stage to stage, as its action list posts and
// consumes them.
//
// A receiver has to know a tensor's type and shape before it can post its receive. Where they are announced, a header
// goes ahead of each tensor, on a group of its own; nobody waits for a header before the action that consumes the
// tensor, so the announcement waits for nothing that the table does not wait for, and cannot deadlock where it does
// not. Later receives are posted ahead, with the shapes that were announced.
//
//   step 1   RECV posts [header]           consumer: waits for it, posts [tensor], waits
//   step 2   RECV posts [tensor]           consumer: waits
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/schedule/table.h"

namespace lockstep::parallel {

class StageMessages {
 public:
  // `table` and `group` must outlive this. Rank r of the group is rank r of the table.
  StageMessages(const schedule::Table& table, comm::ProcessGroup& group);

  // Every rank begins its step with the same value. Shapes of sends must be those last announced unless they are now.
  void begin_step(bool announce);

  // Posts the send; the tensor is kept until it is through.
  //   throws   InvalidArgument for a tensor of another type or shape than announced, or with more than 16 dims
  void send(const schedule::Action& send, const at::Tensor& tensor);
  // Posts the receive.
  void receive(const schedule::Action& receive);
  // The tensor of a receive that was posted; waits for it.
  at::Tensor take(const schedule::Action& receive);
  // Waits until everything that was sent is through.
  void finish_step();

 private:
  struct Form {  // what is announced
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes;
    bool operator==(const Form&) const = default;
  };
  struct Incoming {
    at::Tensor header;  // int64 [kHeaderSize] while its tensor's receive is not posted
    at::Tensor tensor;
    comm::Work work;
  };
  static constexpr int64_t kMostDims = 16, kHeaderSize = 2 + kMostDims;
  static at::Tensor to_header(const Form& form);
  static Form from_header(const at::Tensor& header);

  void post_tensor(const schedule::Action& receive, const Form& form);

  const schedule::Table& table_;
  comm::ProcessGroup& group_;
  const std::unique_ptr<comm::ProcessGroup> headers_;
  bool announce_ = true;
  std::map<schedule::Action, Form> forms_;  // by send, of what this rank sends, and by receive
  std::map<schedule::Action, Incoming> incoming_;
  // By peer: receives whose tensors are not posted yet, in order. Tensors of a peer must be posted in the order in
  // which it sends them, whichever is consumed first.
  std::map<int, std::deque<schedule::Action>> announced_;
  std::vector<comm::Work> sent_;
};

}  // namespace lockstep::parallel
