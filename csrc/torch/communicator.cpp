// See communicator.h.
#include "communicator.h"

#include <Python.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>

#include <c10/util/Exception.h>

namespace smfar {

namespace {

// A collective that was never entered by a peer is ended by the core at its deadline; the end of a
// communicator waits a little longer for the works that then complete.
constexpr milliseconds kGrace{5000};
constexpr milliseconds kSlice{100};

// How long the end of a communicator waits for a stream to pass collectives that have failed.
constexpr milliseconds kLinger{2000};

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
    TORCH_CHECK_VALUE(false, text);
  case SMFAR_ERR_UNSUPPORTED:
    TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  case SMFAR_ERR_MEMORY:
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  default:
    TORCH_CHECK_WITH(DistBackendError, false, text, " (", smfar_status_name(status), ")");
  }
}

// The queue of a watching thread. The thread shares it, and so may outlive the communicator.
struct Communicator::Watcher {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Watched>> queue;
  bool draining = false; // end when the queue is empty
  bool closed = false;   // it was: nothing is taken any more
  bool ended = false;
  std::atomic<bool> stop{false}; // give up on what is in the queue

  std::deque<std::shared_ptr<Watched>> failed; // completed, not released; the thread's own

  // What the stream has not passed in the end keeps its memory until the process ends: better that
  // than a write to memory that is somebody else's by then.
  void giveBack(milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (true) {
      std::erase_if(failed, [](const auto& one) { return one->released(); });
      if (failed.empty() || std::chrono::steady_clock::now() >= deadline) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  bool push(const std::shared_ptr<Watched>& watched) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (closed) return false;
    queue.push_back(watched);
    changed.notify_all();
    return true;
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return draining || !queue.empty(); });
      if (queue.empty()) break;
      auto watched = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      watched->complete(stop);
      if (!watched->released()) failed.push_back(std::move(watched));
      watched.reset(); // may be the last owner of tensors, or of the communicator
      giveBack(milliseconds(0));
      lock.lock();
    }
    closed = true;
    lock.unlock();
    giveBack(kLinger);
    if (!failed.empty()) new auto(std::move(failed));
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  bool waitEnded(std::unique_lock<std::mutex>& lock, milliseconds limit) {
    return changed.wait_for(lock, limit, [this] { return ended; });
  }
};

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
  if (!here()) { // the thread and the driver's state exist in the parent alone
    if (thread_.joinable()) new std::thread(std::move(thread_));
    return;
  }
  finalize();
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

std::shared_ptr<Communicator::Watcher> Communicator::watcher() {
  if (!watcher_) {
    watcher_ = std::make_shared<Watcher>();
    thread_ = std::thread([watcher = watcher_] { watcher->run(); });
  }
  return watcher_;
}

void Communicator::watch(const std::shared_ptr<Watched>& watched) {
  const std::lock_guard<std::mutex> lock(watcher_mutex_);
  watcher()->push(watched);
}

Completer Communicator::completer() {
  const std::lock_guard<std::mutex> lock(watcher_mutex_);
  return [watcher = watcher()](const std::shared_ptr<Watched>& ended) {
    if (!watcher->push(ended)) ended->complete(watcher->stop);
  };
}

void Communicator::drain() {
  WithoutGil released;
  std::shared_ptr<Watcher> watcher;
  std::thread thread;
  {
    // Not held while waiting: a callback of a future may start the next collective.
    const std::lock_guard<std::mutex> lock(watcher_mutex_);
    watcher.swap(watcher_);
    thread.swap(thread_);
  }
  if (watcher) end(*watcher, thread);
}

void Communicator::end(Watcher& watcher, std::thread& thread) const {
  bool ended = false;
  {
    std::unique_lock<std::mutex> lock(watcher.mutex);
    watcher.draining = true;
    watcher.changed.notify_all();
    if (thread.get_id() != std::this_thread::get_id()) {
      ended = watcher.waitEnded(lock, milliseconds(timeout_ms_) + kGrace);
      watcher.stop = true;
      ended = ended || watcher.waitEnded(lock, kLinger + 2 * kSlice);
    }
  }
  // Not ended: this is that thread, or a user's callback has not returned.
  ended ? thread.join() : thread.detach();
}

void Communicator::setTimeout(milliseconds timeout) {
  timeout_ms_ = timeout.count();
  smfar_comm_set_timeout(comm_, timeout.count());
}

} // namespace smfar
