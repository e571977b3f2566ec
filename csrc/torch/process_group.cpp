// See process_group.h.
#include "process_group.h"

#include <algorithm>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "message.h"
#include "stream.h"

namespace smfar {

namespace {

constexpr auto kEnded = "smfar: this process group was shut down";

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

// All that a collective works on.
std::vector<at::Tensor> tensorsOf(const WorkSmfar::Plan& plan) {
  std::vector<at::Tensor> all = plan.inputs;
  all.insert(all.end(), plan.outputs.begin(), plan.outputs.end());
  all.insert(all.end(), plan.stand_ins.begin(), plan.stand_ins.end());
  return all;
}

} // namespace

ProcessGroupSmfar::ProcessGroupSmfar(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     c10::intrusive_ptr<OptionsSmfar> options)
    : Backend(rank, size), store_(std::move(store)), options_(std::move(options)) {
  SMFAR_CHECK_ARGUMENT(size <= SMFAR_MAX_RANKS, "smfar: a group has at most ", int(SMFAR_MAX_RANKS),
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
  config.fixed_order = options_->deterministic;
  config.copy_engines = options_->copy_engines;
  config.timeout_ms = options_->timeout.count();
  config.window_bytes = static_cast<size_t>(options_->window_bytes);
  config.plan_table = options_->plan_table.c_str();
  return config;
}

std::shared_ptr<Communicator> ProcessGroupSmfar::communicator(c10::Device device) {
  const std::lock_guard<std::mutex> lock(making_);
  if (auto made = existing(device.type())) {
    made->checkProcess();
    const int made_for = smfar_comm_device(made->raw());
    SMFAR_CHECK_ARGUMENT(!device.is_cuda() || device.index() == made_for, "smfar: got a tensor on ",
                         device, "; this rank of the group uses cuda:", made_for);
    return made;
  }
  checkNotEnded();
  if (device.is_cpu()) warnAboutCpuTensors();
  TORCH_CHECK_WITH(DistBackendError, !device.is_cuda() || !isCapturing(currentHandle(device)),
                   "smfar: the first CUDA collective of a group cannot be captured; run one "
                   "before the capture");
  const auto store = freshPrefix(store_, device.is_cuda() ? "cuda" : "cpu", rank_);
  auto made = Communicator::create(configFor(device), store, rank_, size_);
  keep(device.type(), made);
  return made;
}

void ProcessGroupSmfar::checkNotEnded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !ended_, kEnded);
}

void ProcessGroupSmfar::keep(c10::DeviceType type, std::shared_ptr<Communicator> made) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !ended_, kEnded);
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
  plan.timed = timed_;
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
  coalesce(work);
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
  const bool captured = stream && isCapturing(current);
  const uint64_t before = smfar_comm_sequence(communicator->raw());
  uint64_t sequence = 0;
  try {
    sequence = communicator->enqueue([&](smfar_comm* comm) {
      if (handle != current) check(smfar_stream_order(comm, current, handle), plan.name);
      if (!captured) work->begin(stream);
      enqueue(comm, handle);
    });
  } catch (...) {
    // the first of several tensors, or chunks, may be under way
    if (smfar_comm_sequence(communicator->raw()) != before)
      keepTensors(communicator, tensorsOf(plan));
    throw;
  }
  work->enqueued(sequence, stream, captured);
  if (plan.async) {
    // the graph's pool keeps a captured collective's memory
    if (!captured) watch(work);
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

// ---- barrier ----

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

// ---- coalescing ----

void ProcessGroupSmfar::coalesce(const WorkPtr& work) {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (coalescing_) coalescing_->push_back(work);
}

void ProcessGroupSmfar::startCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_.emplace();
}

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::endCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  auto works = std::move(coalescing_).value_or(std::vector<WorkPtr>());
  coalescing_.reset();
  return workOfAll(std::move(works));
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

c10::intrusive_ptr<c10d::Backend>
ProcessGroupSmfar::split(const c10::intrusive_ptr<c10d::Store>& store,
                         const std::vector<int>& ranks,
                         const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  const auto given = c10::dynamic_intrusive_pointer_cast<OptionsSmfar>(options);
  TORCH_CHECK_TYPE(!options || given, "smfar: split takes smfar.Options");
  auto chosen = c10::make_intrusive<OptionsSmfar>(given ? *given : *options_);
  auto group = c10::make_intrusive<ProcessGroupSmfar>(store, static_cast<int>(mine - ranks.begin()),
                                                      static_cast<int>(ranks.size()), chosen);
  if (bound_device_id_) group->setBoundDeviceId(*bound_device_id_);
  return group;
}

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
