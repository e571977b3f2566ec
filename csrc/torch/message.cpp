// See message.h.
#include "message.h"

#include <unistd.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "process_group.h"
#include "stream.h"

namespace smfar {

namespace {

c10::intrusive_ptr<c10::ivalue::Future> newFuture() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

class EndedMessage : public Watched {
 public:
  explicit EndedMessage(c10::intrusive_ptr<Message> message) : message_(std::move(message)) {}
  void await(const std::atomic<bool>&) override {}
  void complete() override { message_->ended(); }
  bool released() const override { return true; }

 private:
  const c10::intrusive_ptr<Message> message_;
};

// What the core holds until the message has ended.
struct Ending {
  c10::intrusive_ptr<Message> message;
  Completer completer;
};

void end(void* context) {
  const std::unique_ptr<Ending> ending(static_cast<Ending*>(context));
  ending->completer(std::make_shared<EndedMessage>(std::move(ending->message)));
}

} // namespace

Message::Message(int rank, c10d::OpType type, const char* title, at::Tensor tensor,
                 Buffers& buffers)
    : Work(rank, type, title, std::vector<at::Tensor>{tensor}), process_(getpid()),
      tensor_(std::move(tensor)), copies_(buffers.takeCopies()), stand_ins_(buffers.takeStandIns()),
      future_(newFuture()) {}

Message::~Message() { smfar_request_free(request_); }

void Message::start(const std::shared_ptr<Communicator>& communicator, const Post& post) {
  const std::lock_guard<std::mutex> lock(starting_);
  auto self = c10::intrusive_ptr<Message>::unsafe_reclaim_from_nonowning(this);
  auto ending = std::make_unique<Ending>(Ending{std::move(self), communicator->completer()});
  check(post({end, ending.get()}, &request_), "a message");
  ending.release(); // the core's from here on
}

void Message::ended() {
  {
    const std::lock_guard<std::mutex> lock(starting_);
  }
  std::exception_ptr failure = exception();
  try {
    if (!failure) copyBack();
  } catch (...) {
    failure = std::current_exception();
  }
  finish(failure);
  if (failure)
    future_->setErrorIfNeeded(failure);
  else
    future_->markCompleted(c10::IValue(std::vector<at::Tensor>{tensor_}));
}

void Message::copyBack() {
  std::call_once(copied_, [this] {
    // as the core writes: unseen by autograd, and to inference tensors on any thread
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const CopyBack& copy : copies_)
      at::Tensor(copy.to).copy_(copy.from);
  });
}

void Message::checkProcess() const {
  TORCH_CHECK_WITH(DistBackendError, getpid() == process_, "smfar: this message is process ",
                   process_, "'s and cannot be waited for in its forked child ", getpid());
}

bool Message::isCompleted() {
  const smfar_status status = smfar_request_query(request_);
  if (status == SMFAR_OK) {
    copyBack();
    finish(nullptr);
  }
  return status != SMFAR_PENDING;
}

bool Message::isSuccess() const { return smfar_request_query(request_) == SMFAR_OK; }

std::exception_ptr Message::exception() const {
  const smfar_status status = smfar_request_query(request_);
  if (status == SMFAR_PENDING) return nullptr;
  try {
    check(status, "a message");
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

int Message::sourceRank() const { return smfar_request_peer(request_); }

bool Message::wait(milliseconds timeout) {
  checkProcess();
  const int64_t limit = timeout == kNoTimeout ? -1 : timeout.count();
  check(smfar_request_wait(request_, limit), "a message");
  copyBack();
  finish(nullptr); // ends the profiler's range before the caller goes on, and perhaps the profiler
  return true;
}

// ---- several works as one ----

namespace {

class WorkOfAll : public c10d::Work {
 public:
  explicit WorkOfAll(std::vector<c10::intrusive_ptr<Work>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    for (const auto& work : works_)
      if (!work->isCompleted()) return false;
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : works_)
      if (!work->isSuccess()) return false;
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_)
      if (auto failure = work->exception()) return failure;
    return nullptr;
  }
  bool wait(milliseconds timeout) override {
    for (const auto& work : works_)
      work->wait(timeout);
    return true;
  }
  void synchronize() override {
    for (const auto& work : works_)
      work->synchronize();
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_)
      for (const at::Tensor& tensor : work->result())
        all.push_back(tensor);
    return all;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_)
      futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [all = result()](c10::ivalue::Future& done) {
          done.value(); // throws what one of them threw
          return c10::IValue(all);
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<c10::intrusive_ptr<Work>> works_;
};

} // namespace

c10::intrusive_ptr<c10d::Work> workOfAll(std::vector<c10::intrusive_ptr<c10d::Work>> works) {
  return c10::make_intrusive<WorkOfAll>(std::move(works));
}

// ---- the process group's part ----

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::message(Tensors& tensors, int peer, int tag,
                                                      c10d::OpType type) {
  const bool sends = type == c10d::OpType::SEND;
  const char* const name = sends ? "send" : "recv";
  SMFAR_CHECK_ARGUMENT(tensors.size() == 1, "smfar: ", name, " takes one tensor, not ",
                       tensors.size());
  SMFAR_CHECK_ARGUMENT(peer == SMFAR_ANY_RANK || (peer >= 0 && peer < size_), "smfar: ", name,
                       ": rank ", peer, " is not in 0..", size_ - 1);
  SMFAR_CHECK_ARGUMENT(tag >= 0, "smfar: ", name, ": tag ", tag, " is negative");
  const at::Tensor& tensor = tensors.front();
  Buffers buffers(name);
  const at::Tensor buffer = sends ? buffers.read(tensor) : buffers.write(tensor);
  SMFAR_CHECK_ARGUMENT(sends || tensor.device().is_cpu() || buffer.is_same(tensor), "smfar: ", name,
                       ": got strides ", tensor.strides(), " for sizes ", tensor.sizes(),
                       " on a GPU; use .contiguous() and copy back");
  const auto made = communicator(tensor.device());
  smfar_stream stream = nullptr; // CPU tensors are ready
  if (tensor.device().is_cuda()) {
    stream = currentHandle(tensor.device());
    TORCH_CHECK_WITH(DistBackendError, !isCapturing(stream), "smfar: ", name,
                     " cannot be captured in a CUDA graph: the host matches messages");
  }
  auto work = c10::make_intrusive<Message>(rank_, type, sends ? "smfar:send" : "smfar:recv", tensor,
                                           buffers);
  void* const at = buffer.numel() ? buffer.data_ptr() : nullptr;
  work->start(made, [&](const smfar_ending& ending, smfar_request** request_out) {
    return sends ? smfar_send(at, buffer.nbytes(), peer, tag, made->raw(), stream, &ending,
                              request_out)
                 : smfar_recv(at, buffer.nbytes(), peer, tag, made->raw(), stream, &ending,
                              request_out);
  });
  coalesce(work);
  return work;
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::send(Tensors& tensors, int peer, int tag) {
  return message(tensors, peer, tag, c10d::OpType::SEND);
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::recv(Tensors& tensors, int peer, int tag) {
  return message(tensors, peer, tag, c10d::OpType::RECV);
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, SMFAR_ANY_RANK, tag, c10d::OpType::RECVANYSOURCE);
}

} // namespace smfar
