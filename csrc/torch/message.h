// One message to or from another rank, as c10d sees it; and the work that stands for several works.
//
// wait() blocks the host, for CUDA tensors too: a message is matched by the host. The tensor is
// kept until the message has ended. A message that is never matched does not keep its communicator.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "buffers.h"
#include "communicator.h"

namespace smfar {

class Message : public c10d::Work {
 public:
  // `buffer` is what the core works on in place of `tensor`, or the same.
  Message(int rank, c10d::OpType type, const char* title, at::Tensor tensor, Buffers& buffers);
  ~Message() override;

  // `post` hands the message to the core. The message then owns itself until it has ended.
  using Post = std::function<smfar_status(const smfar_ending& ending, smfar_request** request_out)>;
  void start(const std::shared_ptr<Communicator>& communicator, const Post& post);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  bool wait(milliseconds timeout) override;
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return {tensor_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return 0; }

  // Whatever came of it: copies results back, tells those who wait for the future.
  void ended();

 private:
  void checkProcess() const;
  void copyBack();

  const pid_t process_;
  const at::Tensor tensor_;
  const std::vector<CopyBack> copies_;
  const std::vector<at::Tensor> stand_ins_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::once_flag copied_;
  std::mutex starting_; // held until request_ is there
  smfar_request* request_ = nullptr;
};

// Ends when all of `works` have.
c10::intrusive_ptr<c10d::Work> workOfAll(std::vector<c10::intrusive_ptr<c10d::Work>> works);

} // namespace smfar
