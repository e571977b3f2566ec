// See communicator.h.
#include "communicator.h"

#include <Python.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

namespace smfar {

namespace {

// A collective that was never entered by a peer is ended by the core at its deadline; the end of a
// communicator waits a little longer for the works that then complete.
constexpr milliseconds kGrace{5000};
constexpr milliseconds kSlice{100};

// Lets Python run while this thread waits for one that may need the interpreter.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
  }
  ~WithoutGil() {
    if (state_) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_ = nullptr;
};

} // namespace

void check(smfar_status status, const std::string& doing) {
  if (status == SMFAR_OK) return;
  const char* const late = status == SMFAR_ERR_TIMEOUT ? "the timeout has passed: " : "";
  const std::string text = c10::str("smfar: ", doing, ": ", late, smfar_last_error());
  switch (status) {
  case SMFAR_ERR_ARGUMENT:
    SMFAR_CHECK_ARGUMENT(false, text);
  case SMFAR_ERR_UNSUPPORTED:
    TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  case SMFAR_ERR_MEMORY:
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  default:
    TORCH_CHECK_WITH(DistBackendError, false, text, " (", smfar_status_name(status), ")");
  }
}

Communicator::Communicator(smfar_comm* comm, milliseconds timeout)
    : comm_(comm), process_(getpid()), timeout_ms_(timeout.count()) {}

std::shared_ptr<Communicator> Communicator::create(const smfar_config& config,
                                                   const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int ranks) {
  const smfar_store callbacks = storeCallbacks(store.get());
  smfar_comm* comm = nullptr;
  check(smfar_comm_create(&config, &callbacks, rank, ranks, &comm), "joining the ranks");
  return std::shared_ptr<Communicator>(new Communicator(comm, milliseconds(config.timeout_ms)));
}

Communicator::~Communicator() {
  if (!here()) { // the threads and the driver's state exist in the parent alone
    if (watcher_) new auto(std::move(watcher_));
    return;
  }
  finalize();
  // some device may still write there, which the core says in its log
  if (!smfar_comm_quiet(comm_)) new auto(std::move(held_));
  WithoutGil released;
  smfar_comm_destroy(comm_);
}

void Communicator::finalize() {
  if (!here()) return;
  drain();
  WithoutGil released;
  smfar_comm_finalize(comm_);
}

bool Communicator::here() const { return getpid() == process_; }

void Communicator::checkProcess() const {
  TORCH_CHECK_WITH(DistBackendError, here(), "smfar: this group was made in process ", process_,
                   " and cannot be used in its forked child ", getpid(),
                   "; call init_process_group in the child, or start it with \"spawn\"");
}

uint64_t Communicator::enqueue(const std::function<void(smfar_comm*)>& call) {
  const std::lock_guard<std::mutex> lock(enqueue_mutex_);
  smfar_fixed_order(at::globalContext().deterministicAlgorithms());
  call(comm_);
  return smfar_comm_sequence(comm_);
}

void Communicator::wait(uint64_t sequence, std::optional<milliseconds> limit,
                        const std::string& doing) {
  const int64_t ms = limit ? limit->count() : -1; // the communicator's own, which names the ranks
  check(smfar_comm_wait(comm_, sequence, ms), doing);
}

smfar_status Communicator::waitUnless(uint64_t sequence, const std::atomic<bool>& stop) {
  while (true) {
    const smfar_status status = smfar_comm_wait(comm_, sequence, kSlice.count());
    if (status != SMFAR_ERR_TIMEOUT || stop) return status;
    const smfar_status failure = smfar_comm_error(comm_);
    if (failure != SMFAR_OK) return failure;
  }
}

std::shared_ptr<Watcher> Communicator::watcher() {
  if (!watcher_) watcher_ = std::make_shared<Watcher>();
  return watcher_;
}

void Communicator::watch(const std::shared_ptr<Watched>& watched) {
  const std::lock_guard<std::mutex> lock(watcher_mutex_);
  watcher()->push(watched);
}

Completer Communicator::completer() {
  const std::lock_guard<std::mutex> lock(watcher_mutex_);
  watcher()->handOver();
  return [watcher = watcher()](const std::shared_ptr<Watched>& ended) {
    if (watcher->push(ended)) return;
    ended->await(watcher->stop());
    ended->complete();
  };
}

void Communicator::drain() {
  WithoutGil released;
  std::shared_ptr<Watcher> watcher;
  {
    // Not held while waiting: a callback of a future may start the next collective.
    const std::lock_guard<std::mutex> lock(watcher_mutex_);
    watcher.swap(watcher_);
  }
  if (watcher) watcher->end(milliseconds(timeout_ms_) + kGrace);
}

void Communicator::hold(uint64_t number, std::shared_ptr<void> used) {
  const std::lock_guard<std::mutex> lock(held_mutex_);
  held_[number] = std::move(used);
}

void Communicator::letGo(uint64_t number) {
  std::shared_ptr<void> used; // ends after the lock
  const std::lock_guard<std::mutex> lock(held_mutex_);
  const auto found = held_.find(number);
  if (found == held_.end()) return;
  used = std::move(found->second);
  held_.erase(found);
}

void Communicator::setTimeout(milliseconds timeout) {
  timeout_ms_ = timeout.count();
  smfar_comm_set_timeout(comm_, timeout.count());
}

} // namespace smfar
