// Threads that see collectives end, in order, and complete what depends on them. Completing runs
// callbacks of futures, which may wait for later collectives: another thread goes on then.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace smfar {

// Something that ends with a communicator's collective. It is awaited and then completed, once, by
// one thread, which holds no lock meanwhile.
class Watched {
 public:
  virtual ~Watched() = default;
  // Blocks until it has ended; gives up soon after *stop has become true. Awaited after those
  // handed in before.
  virtual void await(const std::atomic<bool>& stop) = 0;
  // May run a user's callbacks, and so take its time.
  virtual void complete() = 0;
  // May what it owns be given back? A collective that has failed may still write to its tensors.
  virtual bool released() const = 0;
};

// The threads share it, and so may outlive the communicator.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  // False once it has ended.
  bool push(const std::shared_ptr<Watched>& watched);

  // The calling thread may be about to wait for something that only this watcher completes.
  void handOver();

  // Waits until all that was pushed has been completed, at most `limit`, and the threads have
  // ended; then what is left is given up. Called once.
  void end(std::chrono::milliseconds limit);

  const std::atomic<bool>& stop() const { return stop_; }

 private:
  enum class Server { None, Awaits, Completes };
  using Lock = std::unique_lock<std::mutex>;
  using Failed = std::deque<std::shared_ptr<Watched>>;

  void run();
  bool next(Lock& lock); // becomes the server, or returns false at the end
  void serve(Lock& lock, Failed& failed);
  bool mayServe() const;
  bool amServer() const { return server_ != Server::None && who_ == std::this_thread::get_id(); }
  void ensureIdle(); // a thread that can become the server
  bool waitEnded(Lock& lock, std::chrono::milliseconds limit);

  std::mutex mutex_; // guards all but stop_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Watched>> queue_;
  Server server_ = Server::None; // what the one thread does that takes from the queue
  std::thread::id who_;
  std::chrono::steady_clock::time_point completing_since_;
  std::vector<std::thread> threads_;
  int running_ = 0, idle_ = 0;
  bool draining_ = false; // end when the queue is empty
  bool closed_ = false;   // it was: nothing is taken any more
  bool ended_ = false;
  std::atomic<bool> stop_{false}; // give up on what is in the queue
};

} // namespace smfar
