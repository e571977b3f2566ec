// One collective's completion, as c10d sees it. It owns the tensors until the collective has ended.
//
// On CPU wait() blocks the host; futures are completed by the communicator's threads. On CUDA
// wait() makes the current stream of the tensors' device wait and futures are complete, in stream
// order, once the collective is enqueued; only barriers and waits with a time limit block the host.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "buffers.h"
#include "communicator.h"

namespace smfar {

class WorkSmfar : public c10d::Work {
 public:
  struct Plan {
    c10d::OpType type;
    const char* name;  // "all_reduce"
    const char* title; // "smfar:all_reduce", for the profiler
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    c10::Device device;
    bool async;
    bool blocks_host = false;            // wait() blocks the host whatever the device
    bool timed = false;                  // getDuration() is wanted
    std::vector<CopyBack> copies{};      // made when the collective has ended
    std::vector<at::Tensor> stand_ins{}; // kept as long as the tensors
  };

  // Before the collective is enqueued, so that the profiler's range begins here.
  WorkSmfar(std::shared_ptr<Communicator> communicator, int rank, Plan plan);

  // Its time begins: the collective is about to be enqueued on `stream` (nothing for CPU). Not for
  // part of a graph, whose time nobody can tell.
  void begin(const std::optional<c10::Stream>& stream);

  // The collective was enqueued under this number on `stream` (nothing for CPU). Part of a graph,
  // it has no number, and no end that the host could wait for: waits order streams then, no more.
  void enqueued(uint64_t sequence, std::optional<c10::Stream> stream, bool captured);

  // Blocks the host until it has ended and throws when it failed.
  void waitOnHost(std::optional<milliseconds> limit);

  // Ends the work as the communicator's threads saw it: success, or the failure, with its words on
  // this thread.
  void ended(smfar_status status);

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(milliseconds timeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  // Milliseconds; the GPU's between its begin and its end on the stream, for CPU tensors the host's
  // until the end was seen.
  float getDuration() const override;

 private:
  using Clock = std::chrono::steady_clock;

  void finishOnce(const std::exception_ptr& failure);
  void copyBack(); // once, whoever is first to see the end
  void waitOnStream();
  c10::intrusive_ptr<c10::ivalue::Future> newFuture() const;
  c10::IValue futureValue() const;

  const std::shared_ptr<Communicator> communicator_;
  const Plan plan_;
  std::once_flag copied_;
  uint64_t sequence_ = 0;
  bool captured_ = false;
  std::optional<c10::Stream> stream_;             // CUDA only
  std::optional<c10::Event> done_;                // CUDA and async only
  std::optional<c10::Event> begun_at_, ended_at_; // CUDA and timed only
  Clock::time_point begun_;
  std::atomic<Clock::rep> took_{-1}; // CPU only; -1: not ended yet
  mutable std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Has the communicator's threads complete `work`, and own it until then.
void watch(c10::intrusive_ptr<WorkSmfar> work);

// Owns `tensors`, which no work does, until all that was enqueued so far has ended.
void keepTensors(const std::shared_ptr<Communicator>& communicator,
                 std::vector<at::Tensor> tensors);

} // namespace smfar
