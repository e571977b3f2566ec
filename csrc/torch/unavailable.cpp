// The collectives that ProcessGroupSmfar does not have yet: each refuses, and says what would do.
#include "process_group.h"

namespace smfar {

using Group = ProcessGroupSmfar;
using Tensors = Group::Tensors;
using WorkPtr = Group::WorkPtr;

void Group::refuse(const char* collective) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "smfar: ", collective,
      " is not available; all_reduce, broadcast, all_gather, all_gather_into_tensor and barrier "
      "are. Use a second group for it: dist.new_group(backend=\"nccl\") for CUDA tensors, "
      "dist.new_group(backend=\"gloo\") for CPU tensors");
}

WorkPtr Group::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  refuse("all_reduce of sparse tensors");
}

WorkPtr Group::reduce(Tensors&, const c10d::ReduceOptions&) { refuse("reduce"); }

WorkPtr Group::allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) {
  refuse("all_gather_coalesced");
}

WorkPtr Group::gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) {
  refuse("gather");
}

WorkPtr Group::scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) {
  refuse("scatter");
}

WorkPtr Group::reduce_scatter(Tensors&, std::vector<Tensors>&, const c10d::ReduceScatterOptions&) {
  refuse("reduce_scatter");
}

WorkPtr Group::_reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) {
  refuse("reduce_scatter_tensor");
}

WorkPtr Group::reduce_scatter_tensor_coalesced(Tensors&, Tensors&,
                                               const c10d::ReduceScatterOptions&) {
  refuse("reduce_scatter_tensor_coalesced");
}

WorkPtr Group::alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                             const c10d::AllToAllOptions&) {
  refuse("all_to_all_single");
}

WorkPtr Group::alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) { refuse("all_to_all"); }

WorkPtr Group::send(Tensors&, int, int) { refuse("send"); }

WorkPtr Group::recv(Tensors&, int, int) { refuse("recv"); }

WorkPtr Group::recvAnysource(Tensors&, int) { refuse("recv from any source"); }

void Group::monitoredBarrier(const c10d::BarrierOptions&, bool) { refuse("monitored_barrier"); }

} // namespace smfar
