// smfar as a c10d backend. One object serves cpu and cuda tensors, each through a communicator that
// is made at the first collective on such a tensor. It owns no protocol: it turns tensors into
// pointers, streams and Work. What is not available yet refuses in a sentence that says what would
// do.
//
// Overrides only names that exist in every torch from 2.9 to 2.15; newer names forward to them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tensors.h"
#include "work.h"

namespace smfar {

// What a user may choose per group; see smfar.Options. Unset fields take the core's defaults.
struct OptionsSmfar : c10d::Backend::Options {
  explicit OptionsSmfar(milliseconds limit = kBackendDefaultTimeout) : Options("smfar", limit) {}

  int sm_budget = 0;
  bool multicast = true;
  int64_t window_bytes = 0;
  bool timeout_given = false;
};

class ProcessGroupSmfar : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ProcessGroupSmfar(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    c10::intrusive_ptr<OptionsSmfar> options);
  ~ProcessGroupSmfar() override;

  // Collective at the first call per kind of device: makes the communicator.
  std::shared_ptr<Communicator> communicator(c10::Device device);

  // The communicator, if it exists.
  std::shared_ptr<Communicator> existing(c10::DeviceType type);

  const std::string getBackendName() const override { return "smfar"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>&, Tensors&,
                              const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors&, std::vector<Tensors>&,
                         const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&,
                               const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors&, Tensors&,
                                          const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors&, int, int) override;
  WorkPtr recv(Tensors&, int, int) override;
  WorkPtr recvAnysource(Tensors&, int) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override;

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  bool supportsCoalescing() const override { return true; }
#endif
  void startCoalescing() override {}
  WorkPtr endCoalescing() override; // a finished work: each collective was enqueued at its call

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  // Collective: in the window while it has room, ordinary memory after that (said once).
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex index) override;

  void eagerConnectSingleDevice(at::Device device) override;
  void waitForPendingWorks() override;
  void setTimeout(milliseconds timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  using Enqueue = std::function<void(smfar_comm*, smfar_stream)>;

  // Stores a communicator (or none yet); throws once the group was shut down.
  void keep(c10::DeviceType type, std::shared_ptr<Communicator> made);
  smfar_config configFor(c10::Device device) const;
  WorkPtr launch(WorkSmfar::Plan plan, const Enqueue& enqueue);
  void start(const c10::intrusive_ptr<WorkSmfar>& work, const WorkSmfar::Plan& plan,
             const Enqueue& enqueue);
  WorkPtr reduceAll(const Tensors& tensors, const c10d::AllreduceOptions& options,
                    c10d::OpType type);
  c10::Device barrierDevice(const c10d::BarrierOptions& options);
  std::vector<std::shared_ptr<Communicator>> communicators();
  [[noreturn]] void refuse(const char* collective) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<OptionsSmfar> options_;
  std::mutex making_; // held while a communicator is made, which waits for the other ranks
  std::mutex mutex_;  // held briefly; guards the next three
  std::shared_ptr<Communicator> cpu_, cuda_;
  bool ended_ = false;
  std::atomic<uint64_t> collectives_{0};
};

} // namespace smfar
