// See process_group.h.
#include "process_group.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "stream.h"

namespace smfar {

namespace {

// Keys of a group that was destroyed may still be in the store when the next group of that name
// is made (torchrun's store outlives them). Every rank makes its communicators in the same order,
// so counting one's own gives every rank the same number.
c10::intrusive_ptr<c10d::Store> freshPrefix(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::string& kind, int rank) {
  const int64_t generation = store->add(c10::str("smfar/", kind, "/made/", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("smfar/", kind, "/", generation), store);
}

void warnAboutCpuTensors() {
  if (!cudaPresent()) return;
  TORCH_WARN_ONCE(
      "smfar: a CPU tensor goes through the software switch, although this machine has a GPU; "
      "init_process_group(\"cpu:gloo,cuda:smfar\") is recommended for mixed use");
}

bool isSame(const at::Tensor& tensor, c10::Device device) { return tensor.device() == device; }

} // namespace

ProcessGroupSmfar::ProcessGroupSmfar(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     c10::intrusive_ptr<OptionsSmfar> options)
    : Backend(rank, size), store_(std::move(store)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(size <= SMFAR_MAX_RANKS, "smfar: a group has at most ", int(SMFAR_MAX_RANKS),
                    " ranks, not ", size);
  init();
}

ProcessGroupSmfar::~ProcessGroupSmfar() { shutdown(); }

// ---- communicators ----

smfar_config ProcessGroupSmfar::configFor(c10::Device device) const {
  smfar_config config{};
  config.driver = device.is_cuda() ? SMFAR_DRIVER_CUDA : SMFAR_DRIVER_SOFT;
  config.device = device.is_cuda() ? device.index() : -1;
  config.sm_budget = options_->sm_budget;
  config.no_multicast = !options_->multicast;
  config.timeout_ms = options_->timeout.count();
  config.window_bytes = static_cast<size_t>(options_->window_bytes);
  return config;
}

std::shared_ptr<Communicator> ProcessGroupSmfar::communicator(c10::Device device) {
  const std::lock_guard<std::mutex> lock(making_);
  if (auto made = existing(device.type())) {
    made->checkProcess();
    const int made_for = smfar_comm_device(made->raw());
    TORCH_CHECK_VALUE(!device.is_cuda() || device.index() == made_for, "smfar: got a tensor on ",
                      device, "; this rank of the group uses cuda:", made_for);
    return made;
  }
  keep(device.type(), nullptr);
  if (device.is_cpu()) warnAboutCpuTensors();
  TORCH_CHECK_WITH(DistBackendError, !device.is_cuda() || !isCapturing(currentHandle(device)),
                   "smfar: the first CUDA collective of a group cannot be captured; run one "
                   "before the capture");
  const auto store = freshPrefix(store_, device.is_cuda() ? "cuda" : "cpu", rank_);
  auto made = Communicator::create(configFor(device), store, rank_, size_);
  keep(device.type(), made);
  return made;
}

void ProcessGroupSmfar::keep(c10::DeviceType type, std::shared_ptr<Communicator> made) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !ended_, "smfar: this process group was shut down");
  (type == c10::kCUDA ? cuda_ : cpu_) = std::move(made);
}

std::shared_ptr<Communicator> ProcessGroupSmfar::existing(c10::DeviceType type) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return type == c10::kCUDA ? cuda_ : cpu_;
}

std::vector<std::shared_ptr<Communicator>> ProcessGroupSmfar::communicators() {
  std::vector<std::shared_ptr<Communicator>> made;
  for (const auto type : {c10::kCPU, c10::kCUDA}) {
    auto one = existing(type);
    if (one && one->here()) made.push_back(std::move(one));
  }
  return made;
}

// ---- launching ----

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::launch(WorkSmfar::Plan plan, const Enqueue& enqueue) {
  const auto number = static_cast<int64_t>(++collectives_);
  int64_t in_elements = 0, out_elements = 0;
  for (const at::Tensor& tensor : plan.inputs)
    in_elements += tensor.numel();
  for (const at::Tensor& tensor : plan.outputs)
    out_elements += tensor.numel();
  const auto dtype = plan.inputs.empty() ? at::kByte : plan.inputs.front().scalar_type();
  RECORD_PARAM_COMMS_DATA(std::make_tuple(number, false), std::make_tuple(pg_uid_, pg_desc_),
                          plan.inputs, plan.outputs, rank_, plan.name, in_elements, out_elements,
                          dtype, std::vector<int64_t>(), std::vector<int64_t>(), 0, 1, size_);
  auto work = c10::make_intrusive<WorkSmfar>(communicator(plan.device), rank_, plan);
  start(work, plan, enqueue);
  return work;
}

void ProcessGroupSmfar::start(const c10::intrusive_ptr<WorkSmfar>& work,
                              const WorkSmfar::Plan& plan, const Enqueue& enqueue) {
  const std::shared_ptr<Communicator>& communicator = work->communicator();
  std::optional<c10::Stream> stream;
  smfar_stream handle = nullptr;
  smfar_stream current = nullptr;
  if (plan.device.is_cuda()) {
    current = currentHandle(plan.device);
    handle = plan.async ? smfar_comm_stream(communicator->raw()) : current;
    stream = plan.async ? externalStream(plan.device, handle) : currentStream(plan.device);
  }
  const uint64_t sequence = communicator->enqueue([&](smfar_comm* comm) {
    if (handle != current) check(smfar_stream_order(comm, current, handle), plan.name);
    enqueue(comm, handle);
  });
  work->enqueued(sequence, stream);
  if (plan.async) {
    // A captured collective ends when its graph runs; the graph's pool keeps its memory.
    if (!stream || !isCapturing(current)) watch(work);
  } else if (!stream) {
    try {
      work->waitOnHost(std::nullopt);
      work->ended(SMFAR_OK);
    } catch (...) {
      watch(work); // owns the tensors until the stream has passed them
      throw;
    }
  }
}

// ---- collectives ----

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::reduceAll(const Tensors& tensors,
                                                        const c10d::AllreduceOptions& options,
                                                        c10d::OpType type) {
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  std::vector<Flat> flats;
  for (const at::Tensor& tensor : tensors)
    flats.push_back(flatNumbers(tensor));
  WorkSmfar::Plan plan{type,           "all_reduce", "smfar:all_reduce",
                       tensors,        tensors,      tensors.front().device(),
                       options.asyncOp};
  return launch(std::move(plan), [&](smfar_comm* comm, smfar_stream stream) {
    for (const Flat& flat : flats) {
      void* const data = flat.pointer;
      check(op == SMFAR_PREMUL_SUM
                ? smfar_all_reduce_scaled(data, data, flat.count, flat.dtype, scale, comm, stream)
                : smfar_all_reduce(data, data, flat.count, flat.dtype, op, comm, stream),
            "all_reduce");
    }
  });
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::allreduce(Tensors& tensors,
                                                        const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smfar: all_reduce takes one tensor, not ", tensors.size(),
                    "; call it once per tensor, or all_reduce_coalesced");
  checkTensor(tensors.front(), "all_reduce");
  return reduceAll(tensors, options, c10d::OpType::ALLREDUCE);
}

ProcessGroupSmfar::WorkPtr
ProcessGroupSmfar::allreduce_coalesced(Tensors& tensors,
                                       const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "smfar: all_reduce_coalesced: got no tensors");
  for (const at::Tensor& tensor : tensors) {
    checkTensor(tensor, "all_reduce_coalesced");
    TORCH_CHECK_VALUE(isSame(tensor, tensors.front().device()),
                      "smfar: all_reduce_coalesced: got tensors on several devices");
  }
  return reduceAll(tensors, options, c10d::OpType::ALLREDUCE_COALESCED);
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::broadcast(Tensors& tensors,
                                                        const c10d::BroadcastOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smfar: broadcast takes one tensor, not ", tensors.size());
  TORCH_CHECK_VALUE(options.rootRank >= 0 && options.rootRank < size_,
                    "smfar: broadcast: root rank ", options.rootRank, " is not in 0..", size_ - 1);
  checkTensor(tensors.front(), "broadcast");
  const Flat flat = flatBytes(tensors.front());
  const int root = static_cast<int>(options.rootRank);
  WorkSmfar::Plan plan{
      c10d::OpType::BROADCAST,  "broadcast",    "smfar:broadcast", tensors, tensors,
      tensors.front().device(), options.asyncOp};
  return launch(std::move(plan), [&](smfar_comm* comm, smfar_stream stream) {
    check(smfar_broadcast(flat.pointer, flat.pointer, flat.count, flat.dtype, root, comm, stream),
          "broadcast");
  });
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::allgather(std::vector<Tensors>& outputs,
                                                        Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(inputs.size() == 1 && outputs.size() == 1,
                    "smfar: all_gather takes one input and one list of outputs");
  const Tensors& parts = outputs.front();
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(size_), "smfar: all_gather: got ",
                    parts.size(), " output tensors for ", size_, " ranks");
  Tensors all = parts;
  all.push_back(inputs.front());
  checkAlike(all, "all_gather");
  const Flat send = flatBytes(inputs.front());
  std::vector<void*> receive;
  for (const at::Tensor& part : parts)
    receive.push_back(flatBytes(part).pointer);
  WorkSmfar::Plan plan{c10d::OpType::ALLGATHER, "all_gather",   "smfar:all_gather", inputs, parts,
                       inputs.front().device(), options.asyncOp};
  return launch(std::move(plan), [&](smfar_comm* comm, smfar_stream stream) {
    check(smfar_all_gather(send.pointer, receive.data(), send.count, send.dtype, comm, stream),
          "all_gather");
  });
}

ProcessGroupSmfar::WorkPtr
ProcessGroupSmfar::_allgather_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupSmfar::WorkPtr
ProcessGroupSmfar::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(),
                    "smfar: all_gather_into_tensor: got ", inputs.size(), " inputs and ",
                    outputs.size(), " outputs");
  std::vector<std::vector<void*>> receive(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    checkTensor(inputs[i], "all_gather_into_tensor");
    checkTensor(outputs[i], "all_gather_into_tensor");
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * size_ &&
                          outputs[i].scalar_type() == inputs[i].scalar_type() &&
                          isSame(inputs[i], inputs.front().device()) &&
                          isSame(outputs[i], inputs.front().device()),
                      "smfar: all_gather_into_tensor: the output must have ", size_, " times the ",
                      inputs[i].numel(), " elements of the input, its dtype ",
                      inputs[i].scalar_type(), " and its device; got ", outputs[i].numel(), ", ",
                      outputs[i].scalar_type(), ", ", outputs[i].device());
    auto* first = static_cast<char*>(flatBytes(outputs[i]).pointer);
    for (int r = 0; r < size_; r++)
      receive[i].push_back(first + r * inputs[i].nbytes());
  }
  WorkSmfar::Plan plan{
      c10d::OpType::_ALLGATHER_BASE, "all_gather",   "smfar:all_gather", inputs, outputs,
      inputs.front().device(),       options.asyncOp};
  return launch(std::move(plan), [&](smfar_comm* comm, smfar_stream stream) {
    for (size_t i = 0; i < inputs.size(); i++) {
      const Flat send = flatBytes(inputs[i]);
      check(smfar_all_gather(send.pointer, receive[i].data(), send.count, send.dtype, comm, stream),
            "all_gather");
    }
  });
}

// The device asked for, else the one bound at init, else the only one in use, else the CPU.
c10::Device ProcessGroupSmfar::barrierDevice(const c10d::BarrierOptions& options) {
  if (!options.device_ids.empty()) {
    const c10::DeviceIndex index = static_cast<c10::DeviceIndex>(options.device_ids.front());
    return cudaPresent() ? c10::Device(c10::kCUDA, index) : c10::Device(c10::kCPU);
  }
  if (options.device && options.device->is_cuda()) {
    if (options.device->has_index()) return *options.device;
    return c10::Device(c10::kCUDA, c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index());
  }
  if (bound_device_id_ && bound_device_id_->is_cuda()) return *bound_device_id_;
  const auto cuda = existing(c10::kCUDA);
  if (!cuda || existing(c10::kCPU)) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(smfar_comm_device(cuda->raw())));
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::barrier(const c10d::BarrierOptions& options) {
  WorkSmfar::Plan plan{c10d::OpType::BARRIER,  "barrier",      "smfar:barrier", {}, {},
                       barrierDevice(options), options.asyncOp};
  plan.blocks_host = true;
  return launch(std::move(plan), [](smfar_comm* comm, smfar_stream stream) {
    check(smfar_barrier(comm, stream), "barrier");
  });
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::endCoalescing() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(Tensors()));
  return c10d::Work::create_from_future(future);
}

// ---- memory ----

at::Tensor ProcessGroupSmfar::allocateTensor(long size, at::TensorOptions options) {
  try {
    return windowTensor(communicator(options.device()), {size}, options);
  } catch (const c10::OutOfMemoryError& full) { // on every rank alike
    TORCH_WARN_ONCE(full.what_without_backtrace(),
                    "; using ordinary memory: raise Options(window_bytes=)");
    return at::empty({size}, options);
  }
}

bool ProcessGroupSmfar::supportsTensorAlloc(c10::DeviceIndex) { return true; }

// ---- life ----

uint64_t ProcessGroupSmfar::getSequenceNumberForGroup() { return collectives_; }

void ProcessGroupSmfar::eagerConnectSingleDevice(at::Device device) { communicator(device); }

void ProcessGroupSmfar::waitForPendingWorks() {
  for (const auto& one : communicators())
    one->drain();
}

void ProcessGroupSmfar::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  for (const auto& one : communicators())
    one->setTimeout(timeout);
}

c10d::ErrorType ProcessGroupSmfar::getError() {
  for (const auto& one : communicators()) {
    const smfar_status status = smfar_comm_error(one->raw());
    if (status == SMFAR_ERR_TIMEOUT) return c10d::ErrorType::TIMEOUT;
    if (status == SMFAR_ERR_PEER) return c10d::ErrorType::REMOTE_ERROR;
    if (status != SMFAR_OK) return c10d::ErrorType::COMM_ERROR;
  }
  return c10d::ErrorType::SUCCESS;
}

void ProcessGroupSmfar::abort() {
  const std::string reason = c10::str("rank ", rank_, " aborted the process group");
  for (const auto& one : communicators())
    smfar_comm_abort(one->raw(), reason.c_str());
}

// Tensors in the window keep their communicator until they are gone.
void ProcessGroupSmfar::shutdown() {
  waitForPendingWorks();
  std::shared_ptr<Communicator> cpu, cuda; // end after the lock
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    cpu.swap(cpu_);
    cuda.swap(cuda_);
  }
  // works and tensors may still hold them
  if (cpu) cpu->finalize();
  if (cuda) cuda->finalize();
}

} // namespace smfar
