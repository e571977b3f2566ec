// torch.ops.smfar: the direct way to a collective. No Work, no dispatch through c10d, nothing kept:
// the operator runs in stream order on the current stream, as a kernel of PyTorch's own would. See
// smfar/ops.py.
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include "ops.h"
#include "stream.h"

namespace smfar {

c10::intrusive_ptr<ProcessGroupSmfar> groupIn(const c10::intrusive_ptr<c10d::ProcessGroup>& whole,
                                              c10::Device device) {
  const auto backend = whole->getBackend(device.type());
  auto group = c10::dynamic_intrusive_pointer_cast<ProcessGroupSmfar>(backend);
  SMFAR_CHECK_ARGUMENT(group, "smfar: group \"", whole->getGroupName(), "\" serves ", device.type(),
                       " tensors with ", backend->getBackendName(), ", not with smfar");
  return group;
}

namespace {

smfar_op opNamed(const std::string& name) {
  if (name == "sum") return SMFAR_SUM;
  if (name == "avg") return SMFAR_AVG;
  if (name == "product") return SMFAR_PRODUCT;
  if (name == "min") return SMFAR_MIN;
  if (name == "max") return SMFAR_MAX;
  if (name == "band") return SMFAR_BAND;
  if (name == "bor") return SMFAR_BOR;
  if (name == "bxor") return SMFAR_BXOR;
  SMFAR_CHECK_ARGUMENT(false, "smfar: all_reduce_: \"", name,
                       "\" is none of sum, avg, product, min, max, band, bor, bxor");
}

void allReduce(const at::Tensor& tensor, const std::string& op, const std::string& group) {
  groupIn(c10d::resolve_process_group(group), tensor.device())->reduceInOrder(tensor, opNamed(op));
}

void allReduceMeta(const at::Tensor&, const std::string& op, const std::string&) { opNamed(op); }

// Would the dispatcher do nothing but call the kernel? Not for fake tensors, modes and transforms.
bool isPlain(const at::Tensor& tensor) {
  const auto& thread = c10::impl::tls_local_dispatch_key_set();
  const auto keys = ((tensor.key_set() | thread.included_) - thread.excluded_) -
                    c10::autograd_dispatch_keyset_with_ADInplaceOrView -
                    c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  const auto first = keys.highestPriorityTypeId();
  return first == c10::DispatchKey::CPU || first == c10::DispatchKey::CUDA;
}

} // namespace

bool allReduceNow(const at::Tensor& tensor, const std::string& op,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (!isPlain(tensor)) return false;
  groupIn(group, tensor.device())->reduceInOrder(tensor, opNamed(op));
  return true;
}

void ProcessGroupSmfar::reduceInOrder(const at::Tensor& tensor, smfar_op op) {
  checkTensor(tensor, "all_reduce_");
  SMFAR_CHECK_ARGUMENT(tensor.is_non_overlapping_and_dense(), "smfar: all_reduce_ needs a tensor ",
                       "without gaps; call torch.distributed.all_reduce, which copies");
  const Flat flat = flatNumbers(tensor);
  const auto made = communicator(tensor.device());
  const smfar_stream stream = tensor.is_cuda() ? currentHandle(tensor.device()) : nullptr;
  const uint64_t sequence = made->enqueue([&](smfar_comm* comm) {
    check(smfar_all_reduce(flat.pointer, flat.pointer, flat.count, flat.dtype, op, comm, stream),
          "all_reduce_");
  });
  if (tensor.is_cuda()) return;
  try {
    made->wait(sequence, std::nullopt, "all_reduce_");
  } catch (...) {
    keepTensors(made, {tensor}); // a kernel may still write to it
    throw;
  }
}

} // namespace smfar

TORCH_LIBRARY(smfar, library) {
  // nothing is returned: torch.compile takes no operator whose result is its argument
  library.def("all_reduce_(Tensor(a!) tensor, str op, str group_name) -> ()");
}
TORCH_LIBRARY_IMPL(smfar, CPU, library) { library.impl("all_reduce_", &smfar::allReduce); }
TORCH_LIBRARY_IMPL(smfar, CUDA, library) { library.impl("all_reduce_", &smfar::allReduce); }
TORCH_LIBRARY_IMPL(smfar, Meta, library) { library.impl("all_reduce_", &smfar::allReduceMeta); }
