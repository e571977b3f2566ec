// See work.h.
#include "work.h"

#include <c10/core/StreamGuard.h>

#include "stream.h"

namespace smfar {

namespace {

std::optional<std::vector<at::Tensor>> profiled(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) return std::nullopt;
  return inputs;
}

class WatchedWork : public Watched {
 public:
  explicit WatchedWork(c10::intrusive_ptr<WorkSmfar> work) : work_(std::move(work)) {}

  void await(const std::atomic<bool>& stop) override {
    status_ = work_->communicator()->waitUnless(work_->getSequencenumber(), stop);
  }

  void complete() override { work_->ended(status_); }

  bool released() const override {
    return work_->communicator()->released(work_->getSequencenumber());
  }

 private:
  const c10::intrusive_ptr<WorkSmfar> work_;
  smfar_status status_ = SMFAR_PENDING;
};

class Kept : public Watched {
 public:
  Kept(std::shared_ptr<Communicator> communicator, std::vector<at::Tensor> tensors)
      : communicator_(std::move(communicator)), tensors_(std::move(tensors)),
        sequence_(smfar_comm_sequence(communicator_->raw())) {}

  void await(const std::atomic<bool>& stop) override { communicator_->waitUnless(sequence_, stop); }

  void complete() override {}

  bool released() const override { return communicator_->released(sequence_); }

 private:
  const std::shared_ptr<Communicator> communicator_;
  const std::vector<at::Tensor> tensors_;
  const uint64_t sequence_;
};

} // namespace

void keepTensors(const std::shared_ptr<Communicator>& communicator,
                 std::vector<at::Tensor> tensors) {
  communicator->watch(std::make_shared<Kept>(communicator, std::move(tensors)));
}

void watch(c10::intrusive_ptr<WorkSmfar> work) {
  const std::shared_ptr<Communicator> communicator = work->communicator();
  communicator->watch(std::make_shared<WatchedWork>(std::move(work)));
}

WorkSmfar::WorkSmfar(std::shared_ptr<Communicator> communicator, int rank, Plan plan)
    : Work(rank, plan.type, plan.title, profiled(plan.inputs)),
      communicator_(std::move(communicator)), plan_(std::move(plan)) {}

void WorkSmfar::copyBack() {
  std::call_once(copied_, [this] {
    // as the core writes: unseen by autograd, and to inference tensors on any thread
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const CopyBack& copy : plan_.copies)
      at::Tensor(copy.to).copy_(copy.from);
  });
}

void WorkSmfar::begin(const std::optional<c10::Stream>& stream) {
  begun_ = Clock::now();
  if (!plan_.timed || !stream) return;
  begun_at_.emplace(stream->device_type(), c10::EventFlag::BACKEND_DEFAULT); // which takes the time
  begun_at_->record(*stream);
}

float WorkSmfar::getDuration() const {
  TORCH_CHECK(plan_.timed, "smfar: ", plan_.name,
              " was not timed; call the group's _enable_collectives_timing() first");
  if (ended_at_) {
    TORCH_CHECK(ended_at_->query(), "smfar: ", plan_.name, " has not ended yet");
    return static_cast<float>(begun_at_->elapsedTime(*ended_at_));
  }
  TORCH_CHECK(took_ >= 0, "smfar: ", plan_.name, " has not ended yet");
  return std::chrono::duration<float, std::milli>(Clock::duration(took_)).count();
}

void WorkSmfar::enqueued(uint64_t sequence, std::optional<c10::Stream> stream, bool captured) {
  sequence_ = sequence;
  captured_ = captured;
  stream_ = stream;
  if (begun_at_) {
    ended_at_.emplace(stream_->device_type(), c10::EventFlag::BACKEND_DEFAULT);
    ended_at_->record(*stream_);
  }
  if (stream_ && !plan_.copies.empty()) { // in stream order
    const c10::MultiStreamGuard guard(*stream_);
    copyBack();
  }
  if (!stream_) {
    if (plan_.async) future_ = newFuture();
    return;
  }
  if (!plan_.async) return;
  done_.emplace(stream_->device_type());
  done_->record(*stream_);
  future_ = newFuture();
}

// With the stream current, a CUDA future records there the events that its callbacks wait for.
c10::intrusive_ptr<c10::ivalue::Future> WorkSmfar::newFuture() const {
  const auto type = c10::ListType::create(c10::TensorType::get());
  if (!stream_) return c10::make_intrusive<c10::ivalue::Future>(type);
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(type, std::vector<c10::Device>{stream_->device()});
  const c10::MultiStreamGuard guard(*stream_);
  future->markCompleted(futureValue());
  return future;
}

c10::IValue WorkSmfar::futureValue() const { return c10::IValue(plan_.outputs); }

void WorkSmfar::ended(smfar_status status) {
  std::exception_ptr failure;
  try {
    check(status, plan_.name);
    copyBack();
  } catch (...) {
    failure = std::current_exception();
  }
  finishOnce(failure);
  if (stream_ || !future_) return;
  if (failure) {
    future_->setErrorIfNeeded(failure);
  } else if (!future_->completed()) {
    future_->markCompleted(futureValue());
  }
}

void WorkSmfar::finishOnce(const std::exception_ptr& failure) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (completed_) return;
    if (took_ < 0) took_ = (Clock::now() - begun_).count();
  }
  finish(failure);
}

void WorkSmfar::waitOnHost(std::optional<milliseconds> limit) {
  communicator_->checkProcess();
  communicator_->wait(sequence_, limit, plan_.name);
  copyBack();
  finishOnce(nullptr);
}

bool WorkSmfar::wait(milliseconds timeout) {
  communicator_->checkProcess();
  if (!captured_ && (!stream_ || plan_.blocks_host || timeout != kNoTimeout)) {
    waitOnHost(timeout == kNoTimeout ? std::nullopt : std::make_optional(timeout));
  }
  if (stream_) waitOnStream();
  return true;
}

void WorkSmfar::waitOnStream() {
  const c10::Stream current = currentStream(stream_->device());
  if (done_) {
    done_->block(current);
  } else if (current != *stream_) {
    c10::Event event(stream_->device_type());
    event.record(*stream_);
    event.block(current);
  }
}

void WorkSmfar::synchronize() {
  if (stream_) waitOnStream();
}

void WorkSmfar::abort() {
  smfar_comm_abort(communicator_->raw(), "a work of this group was aborted");
}

bool WorkSmfar::isCompleted() {
  const smfar_status status = communicator_->query(sequence_);
  if (status == SMFAR_OK) {
    copyBack();
    finishOnce(nullptr); // ends the profiler's range before the caller goes on
  }
  return status != SMFAR_PENDING;
}

bool WorkSmfar::isSuccess() const { return communicator_->query(sequence_) == SMFAR_OK; }

std::exception_ptr WorkSmfar::exception() const {
  const smfar_status status = communicator_->query(sequence_);
  if (status == SMFAR_PENDING) return nullptr;
  try {
    check(status, plan_.name);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

std::vector<at::Tensor> WorkSmfar::result() { return plan_.outputs; }

// A synchronous work's future is made on demand: it has ended, on the host or in stream order.
c10::intrusive_ptr<c10::ivalue::Future> WorkSmfar::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (!future_) {
    future_ = newFuture();
    if (!stream_) future_->markCompleted(futureValue());
  }
  return future_;
}

uint64_t WorkSmfar::getSequencenumber() const { return sequence_; }

} // namespace smfar
