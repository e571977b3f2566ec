// See watcher.h.
#include "watcher.h"

namespace smfar {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPatience{1};  // with callbacks, before another thread goes on
constexpr milliseconds kLinger{2000}; // how long the end waits for streams to pass what has failed
constexpr milliseconds kSlice{100};

thread_local const Watcher* here = nullptr; // whose thread this is

// What the stream has not passed in the end keeps its memory until the process ends: better that
// than a write to memory that is somebody else's by then.
void giveBack(std::deque<std::shared_ptr<Watched>>& failed, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  while (true) {
    std::erase_if(failed, [](const auto& one) { return one->released(); });
    if (failed.empty() || steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

} // namespace

bool Watcher::push(const std::shared_ptr<Watched>& watched) {
  const Lock lock(mutex_);
  if (closed_) return false;
  queue_.push_back(watched);
  if (amServer()) server_ = Server::None; // a callback has started this, and may wait for it
  ensureIdle();
  changed_.notify_all();
  return true;
}

void Watcher::handOver() {
  const Lock lock(mutex_);
  if (!amServer()) return;
  server_ = Server::None;
  ensureIdle();
  changed_.notify_all();
}

void Watcher::ensureIdle() {
  if (idle_ > 0 || server_ == Server::Awaits) return;
  threads_.emplace_back([self = shared_from_this()] { self->run(); });
  running_++;
  idle_++;
}

bool Watcher::mayServe() const {
  if (queue_.empty()) return false;
  return server_ == Server::None ||
         (server_ == Server::Completes && steady_clock::now() - completing_since_ >= kPatience);
}

// This thread counts as idle until it returns.
bool Watcher::next(Lock& lock) {
  while (!mayServe()) {
    if (draining_ && queue_.empty() && server_ == Server::None) break;
    if (server_ == Server::Completes && !queue_.empty())
      changed_.wait_for(lock, kPatience);
    else
      changed_.wait(lock);
  }
  idle_--;
  if (queue_.empty()) return false;
  server_ = Server::Awaits;
  who_ = std::this_thread::get_id();
  return true;
}

void Watcher::serve(Lock& lock, Failed& failed) {
  auto watched = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  watched->await(stop_);
  lock.lock();
  server_ = Server::Completes;
  completing_since_ = steady_clock::now();
  if (!queue_.empty()) ensureIdle();
  lock.unlock();
  watched->complete();
  if (!watched->released()) failed.push_back(std::move(watched));
  watched.reset(); // may be the last owner of tensors, or of the communicator
  giveBack(failed, milliseconds(0));
  lock.lock();
  if (amServer()) server_ = Server::None;
  idle_++;
}

void Watcher::run() {
  here = this;
  Failed failed;
  Lock lock(mutex_);
  while (next(lock))
    serve(lock, failed);
  changed_.notify_all();
  if (running_ == 1) closed_ = true;
  lock.unlock();
  giveBack(failed, kLinger);
  if (!failed.empty()) new auto(std::move(failed));
  lock.lock();
  if (--running_ == 0) closed_ = ended_ = true;
  changed_.notify_all();
}

bool Watcher::waitEnded(Lock& lock, milliseconds limit) {
  return changed_.wait_for(lock, limit, [this] { return ended_; });
}

void Watcher::end(milliseconds limit) {
  std::vector<std::thread> threads;
  bool ended = false;
  {
    Lock lock(mutex_);
    draining_ = true;
    ended_ = closed_ = running_ == 0;
    changed_.notify_all();
    if (here != this) {
      ended = waitEnded(lock, limit);
      stop_ = true;
      ended = ended || waitEnded(lock, kLinger + 2 * kSlice);
    }
    threads.swap(threads_);
  }
  // Not ended: this is one of those threads, or a user's callback has not returned.
  for (std::thread& thread : threads)
    ended ? thread.join() : thread.detach();
}

} // namespace smfar
