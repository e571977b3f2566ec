// See pool.h.
#include "pool.h"

#include <sys/types.h>

#include <array>
#include <map>

#include <c10/util/Exception.h>

namespace smfar {

namespace {

constexpr size_t kAlignment = 512; // of every part, as PyTorch expects of an allocator

struct Pool {
  std::shared_ptr<Communicator> communicator; // null: there is no such pool
  char* base = nullptr;
  size_t bytes = 0;
  std::map<size_t, size_t> taken; // offset and size of each part
  bool closed = false;
  bool full_said = false;
};

std::mutex pools_mutex; // held briefly, and never while anything of PyTorch's is called
std::array<Pool, kPools> pools;

// The lowest place where `size` bytes fit, or `bytes`.
size_t findRoom(const Pool& pool, size_t size) {
  size_t at = 0;
  for (const auto& [offset, length] : pool.taken) {
    if (offset - at >= size) break;
    at = offset + length;
  }
  return pool.bytes - at >= size ? at : pool.bytes;
}

void* take(int number, ssize_t asked) {
  const size_t size = (static_cast<size_t>(asked) + kAlignment - 1) / kAlignment * kAlignment;
  bool say = false;
  size_t capacity = 0;
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    Pool& pool = pools[number];
    if (!pool.communicator || pool.closed || asked < 0) return nullptr;
    const size_t at = findRoom(pool, size);
    if (at < pool.bytes) {
      pool.taken[at] = size;
      return pool.base + at;
    }
    say = !pool.full_said;
    pool.full_said = true;
    capacity = pool.bytes;
  }
  if (say) {
    TORCH_WARN("smfar: a memory pool of ", capacity, " bytes has no ", size,
               " bytes in one piece left; smfar.mem_pool(bytes=...) makes a larger one");
  }
  return nullptr;
}

void give(int number, void* part) {
  const std::lock_guard<std::mutex> lock(pools_mutex);
  Pool& pool = pools[number];
  if (pool.communicator)
    pool.taken.erase(static_cast<size_t>(static_cast<char*>(part) - pool.base));
}

// Gives back what closed pools no longer need. Not by free(): a communicator's end waits for
// threads that may be waiting for the allocator which is calling.
void sweep() {
  std::vector<Pool> ended;
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    for (Pool& pool : pools) {
      if (!pool.closed || !pool.taken.empty()) continue;
      ended.push_back(std::move(pool));
      pool = Pool();
    }
  }
  for (const Pool& pool : ended)
    if (pool.communicator->here()) smfar_window_free(pool.communicator->raw(), pool.base);
}

} // namespace

int openPool(const std::shared_ptr<Communicator>& communicator, size_t bytes) {
  sweep();
  void* base = nullptr;
  check(smfar_window_alloc(communicator->raw(), bytes, &base),
        c10::str("a memory pool of ", bytes, " bytes in the window"));
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    for (int number = 0; number < kPools; number++) {
      if (pools[number].communicator) continue;
      pools[number].communicator = communicator;
      pools[number].base = static_cast<char*>(base);
      pools[number].bytes = bytes;
      return number;
    }
  }
  smfar_window_free(communicator->raw(), base);
  TORCH_CHECK_NOT_IMPLEMENTED(false, "smfar: a process has at most ", kPools,
                              " memory pools; let one go before you make another");
}

void closePool(int number) {
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    pools.at(number).closed = true;
  }
  sweep();
}

PoolUse usePool(int number) {
  const std::lock_guard<std::mutex> lock(pools_mutex);
  const Pool& pool = pools.at(number);
  PoolUse use{pool.bytes, 0};
  for (const auto& [offset, length] : pool.taken)
    use.taken += length;
  return use;
}

} // namespace smfar

// As torch.cuda.memory.CUDAPluggableAllocator wants them; the stream is not needed, since PyTorch
// gives a part back only when no stream uses it.
#define POOL(number)                                                                               \
  extern "C" __attribute__((visibility("default"))) void* smfar_pool_alloc_##number(ssize_t size,  \
                                                                                    int, void*) {  \
    return smfar::take(number, size);                                                              \
  }                                                                                                \
  extern "C" __attribute__((visibility("default"))) void smfar_pool_free_##number(                 \
      void* part, size_t, int, void*) {                                                            \
    smfar::give(number, part);                                                                     \
  }
POOL(0)
POOL(1)
POOL(2)
POOL(3)
POOL(4)
POOL(5)
POOL(6)
POOL(7)
POOL(8)
POOL(9)
POOL(10)
POOL(11)
POOL(12)
POOL(13)
POOL(14)
POOL(15)
#undef POOL
