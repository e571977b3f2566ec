// One smfar communicator as the shim uses it: calls serialised with the numbers they get, statuses
// turned into PyTorch's exceptions, threads that complete futures, and an end that never hangs.
// Shared by the process group, its works and the tensors in its window; the last of them ends it.
// It knows nothing of tensors or of collectives.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "../smfar.h"
#include "argument_error.h"
#include "watcher.h"

namespace smfar {

using std::chrono::milliseconds;

// Throws what PyTorch's users expect for `status` (nothing for SMFAR_OK): ArgumentError,
// NotImplementedError, OutOfMemoryError, or DistBackendError. `doing` names the operation; the rest
// is what smfar_last_error() says on this thread.
void check(smfar_status status, const std::string& doing);

// Has something that has ended completed, on a watching thread while there is one.
using Completer = std::function<void(const std::shared_ptr<Watched>& ended)>;

class Communicator {
 public:
  // Collective; blocks until every rank has come. `store` is used during this call only.
  static std::shared_ptr<Communicator> create(const smfar_config& config,
                                              const c10::intrusive_ptr<c10d::Store>& store,
                                              int rank, int ranks);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  smfar_comm* raw() const { return comm_; }

  // Runs `call`, which enqueues collectives, and returns the last one's number. What it throws is
  // passed on.
  uint64_t enqueue(const std::function<void(smfar_comm*)>& call);

  // Blocks the host until collective `sequence` has ended; throws when it failed or `limit` has
  // passed. With no limit the communicator's own deadline decides, and its error names the ranks.
  void wait(uint64_t sequence, std::optional<milliseconds> limit, const std::string& doing);

  // The same in slices, for a thread that must be able to stop.
  smfar_status waitUnless(uint64_t sequence, const std::atomic<bool>& stop);

  smfar_status query(uint64_t sequence) const { return smfar_comm_query(comm_, sequence); }

  bool released(uint64_t sequence) const { return smfar_comm_released(comm_, sequence); }

  // Has `watched` awaited and completed by a thread of this communicator.
  void watch(const std::shared_ptr<Watched>& watched);

  // For what ends at a time of its own, and may outlive the communicator.
  Completer completer();

  // Waits until all that is watched has completed, at most the timeout; then the threads end.
  void drain();

  // drain(), and leaves the group: whoever still holds this can use the window's memory, no more.
  void finalize();

  void setTimeout(milliseconds timeout);

  // Keeps what the core uses under this number, until told otherwise or the communicator has ended
  // and nothing uses its memory any more.
  void hold(uint64_t number, std::shared_ptr<void> used);
  void letGo(uint64_t number);

  // Throws in a process that was forked after this was made: streams and threads stayed behind.
  void checkProcess() const;

  // Is this the process that made it?
  bool here() const;

 private:
  Communicator(smfar_comm* comm, milliseconds timeout);
  std::shared_ptr<Watcher> watcher(); // under watcher_mutex_

  smfar_comm* const comm_;
  const pid_t process_;
  std::atomic<int64_t> timeout_ms_;
  std::mutex enqueue_mutex_;
  std::mutex watcher_mutex_; // guards the next
  std::shared_ptr<Watcher> watcher_;
  std::mutex held_mutex_; // guards the next
  std::map<uint64_t, std::shared_ptr<void>> held_;
};

// Wraps a c10d store for smfar_comm_create; `store` must outlive what is returned.
smfar_store storeCallbacks(c10d::Store* store);

} // namespace smfar
