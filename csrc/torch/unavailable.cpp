// What c10d offers to few backends, and smfar refuses: each says what would do.
#include "process_group.h"

namespace smfar {

ProcessGroupSmfar::WorkPtr ProcessGroupSmfar::allreduce_sparse(Tensors&,
                                                               const c10d::AllreduceOptions&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "smfar: all_reduce of sparse tensors is not available: use .to_dense(), or a second "
             "group, dist.new_group(backend=\"gloo\")");
}

void ProcessGroupSmfar::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "smfar: monitored_barrier is not available: use barrier, whose error "
                              "names the ranks that did not come, too");
}

} // namespace smfar
