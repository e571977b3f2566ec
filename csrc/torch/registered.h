// Tensors of other allocators in the window: registered by all ranks together, and kept alive until
// all of them have taken that back, or the communicator ends.
#pragma once

#include <memory>
#include <mutex>

#include <ATen/ATen.h>

#include "communicator.h"

namespace smfar {

class Registered {
 public:
  // Collective.
  static std::shared_ptr<Registered> add(const std::shared_ptr<Communicator>& communicator,
                                         const at::Tensor& tensor);

  // Collective, once: of threads that call it together one does it, and the others wait. After a
  // refusal it can be called again. Once it is done, another call does nothing, nor does one for a
  // group that has failed or ended: the tensor's memory is then kept as long as the communicator,
  // and for good where a device may still write to it.
  void drop();

 private:
  Registered(std::shared_ptr<Communicator> communicator, uint64_t id);

  std::mutex dropping_;                        // held while the ranks drop it; guards the next
  std::shared_ptr<Communicator> communicator_; // null once dropped
  const uint64_t id_;
};

} // namespace smfar
