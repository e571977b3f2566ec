// See registered.h.
#include "registered.h"

#include "tensors.h"

namespace smfar {

Registered::Registered(std::shared_ptr<Communicator> communicator, uint64_t id)
    : communicator_(std::move(communicator)), id_(id) {}

std::shared_ptr<Registered> Registered::add(const std::shared_ptr<Communicator>& communicator,
                                            const at::Tensor& tensor) {
  uint64_t id = 0;
  check(smfar_window_register(communicator->raw(), tensor.data_ptr(), tensor.nbytes(), &id),
        c10::str("registering ", tensor.nbytes(), " bytes"));
  if (id != 0) communicator->hold(id, std::make_shared<at::Tensor>(tensor));
  return std::shared_ptr<Registered>(new Registered(communicator, id));
}

void Registered::drop() {
  const std::lock_guard<std::mutex> lock(dropping_);
  const auto communicator = communicator_;
  if (!communicator) return;
  if (smfar_comm_error(communicator->raw()) == SMFAR_OK) {
    check(smfar_window_deregister(communicator->raw(), id_), "deregistering");
    communicator->letGo(id_);
  }
  communicator_ = nullptr;
}

} // namespace smfar
