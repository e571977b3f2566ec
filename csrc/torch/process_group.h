// smfar as a c10d backend. One object serves cpu and cuda tensors, each through a communicator that
// is made at the first collective on such a tensor. It owns no protocol: it turns tensors into
// pointers, streams and Work. What is not available yet refuses in a sentence that says what would
// do.
//
// Overrides only names that exist in every torch from 2.9 to 2.15; newer names forward to them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include "tensors.h"
#include "work.h"

namespace smfar {

// What a user may choose per group; see smfar.Options. Unset fields take the core's defaults.
struct OptionsSmfar : c10d::Backend::Options {
  explicit OptionsSmfar(milliseconds limit = kBackendDefaultTimeout) : Options("smfar", limit) {}

  int sm_budget = 0;
  bool multicast = true;
  bool deterministic = false;
  bool copy_engines = false;
  int64_t window_bytes = 0;
  std::string plan_table;
  bool timeout_given = false;
};

class ProcessGroupSmfar : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ProcessGroupSmfar(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    c10::intrusive_ptr<OptionsSmfar> options);
  ~ProcessGroupSmfar() override;

  // In place, in order on the tensor's current stream; a CPU tensor is waited for.
  void reduceInOrder(const at::Tensor& tensor, smfar_op op);

  // Collective at the first call per kind of device: makes the communicator.
  std::shared_ptr<Communicator> communicator(c10::Device device);

  // Throws once the group was shut down.
  void checkNotEnded();

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

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Refused, with a sentence.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override;

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
#endif
  // Everything is enqueued at its call; what comes between is waited for together.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // A group of some of these ranks; null on a rank that is not one of them. Not collective: ranks
  // meet at the new group's first collective.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  // Collective: in the window while it has room, ordinary memory after that (said once).
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex index) override;

  void eagerConnectSingleDevice(at::Device device) override;
  void waitForPendingWorks() override;
  // From the next collective on, works tell how long they took; messages do not.
  void enableCollectivesTiming() override { timed_ = true; }
  void setTimeout(milliseconds timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  using Enqueue = std::function<void(smfar_comm*, smfar_stream)>;

  // Stores a communicator; throws once the group was shut down.
  void keep(c10::DeviceType type, std::shared_ptr<Communicator> made);
  smfar_config configFor(c10::Device device) const;
  WorkPtr launch(WorkSmfar::Plan plan, const Enqueue& enqueue);
  void start(const c10::intrusive_ptr<WorkSmfar>& work, const WorkSmfar::Plan& plan,
             const Enqueue& enqueue);
  WorkPtr reduceAll(const Tensors& tensors, const c10d::AllreduceOptions& options,
                    c10d::OpType type);
  WorkPtr reduceScatter(const Tensors& outputs, const Tensors& inputs,
                        const c10d::ReduceScatterOptions& options, c10d::OpType type);
  // outputs[i] holds what every rank has as inputs[i].
  WorkPtr gatherAll(const std::vector<Tensors>& outputs, const Tensors& inputs,
                    const c10d::AllgatherOptions& options, c10d::OpType type);

  // Of parts with sizes of their own: one broadcast, or one reduction, for each rank's.
  WorkPtr gatherUnequal(const Tensors& parts, const at::Tensor& input, bool async);
  WorkPtr reduceUnequal(const at::Tensor& output, const Tensors& parts,
                        const c10d::ReduceScatterOptions& options);

  // An all-to-all whose parts have sizes of their own, counted in `dtype`.
  struct Unequal {
    std::vector<void*> send, receive;
    std::vector<size_t> send_counts, receive_counts;
    smfar_dtype dtype = SMFAR_U8;
  };
  WorkPtr exchangeUnequal(WorkSmfar::Plan plan, const Unequal& parts);

  WorkPtr message(Tensors& tensors, int peer, int tag, c10d::OpType type);
  // Between startCoalescing and endCoalescing: remembered, for the one work that stands for all.
  void coalesce(const WorkPtr& work);
  void checkRoot(int64_t root, const char* collective) const;
  c10::Device barrierDevice(const c10d::BarrierOptions& options);
  std::vector<std::shared_ptr<Communicator>> communicators();

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<OptionsSmfar> options_;
  std::mutex making_; // held while a communicator is made, which waits for the other ranks
  std::mutex mutex_;  // held briefly; guards the next three
  std::shared_ptr<Communicator> cpu_, cuda_;
  bool ended_ = false;
  std::atomic<uint64_t> collectives_{0};
  std::atomic<bool> timed_{false};
  std::mutex coalescing_mutex_; // guards the next
  std::optional<std::vector<WorkPtr>> coalescing_;
};

} // namespace smfar
