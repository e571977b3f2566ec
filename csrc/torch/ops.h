// The direct operators, without PyTorch's dispatcher. See ops.cpp.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "process_group.h"

namespace smfar {

// The smfar backend of `whole` for tensors on `device`; throws where another serves it.
c10::intrusive_ptr<ProcessGroupSmfar> groupIn(const c10::intrusive_ptr<c10d::ProcessGroup>& whole,
                                              c10::Device device);

// What torch.ops.smfar.all_reduce_ does, unless the tensor needs the dispatcher: then false, and
// nothing has been done.
bool allReduceNow(const at::Tensor& tensor, const std::string& op,
                  const c10::intrusive_ptr<c10d::ProcessGroup>& group);

} // namespace smfar
