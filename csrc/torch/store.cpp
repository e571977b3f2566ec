// A c10d store as the callbacks through which the core's ranks first meet. It adds no keys and
// decides nothing; prefixes are the process group's.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "communicator.h"

namespace smfar {

namespace {

using Clock = std::chrono::steady_clock;

// between two questions whether a key is there
constexpr milliseconds kShortest{1}, kLongest{64};

smfar_status set(void* context, const char* key, const void* value, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(value);
  try {
    static_cast<c10d::Store*>(context)->set(key, std::vector<uint8_t>(first, first + bytes));
    return SMFAR_OK;
  } catch (const std::exception& error) {
    TORCH_WARN("smfar: the store refused key ", key, ": ", error.what());
    return SMFAR_ERR_SYSTEM;
  }
}

// Asks again and again, and never waits in the store: a TCPStore serves one call at a time, so that
// groups which other threads make would wait for this one.
bool appears(c10d::Store* store, const char* key, Clock::time_point deadline) {
  for (auto pause = kShortest; !store->check({key}); pause = std::min(2 * pause, kLongest)) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    std::this_thread::sleep_until(std::min(now + pause, deadline));
  }
  return true;
}

smfar_status get(void* context, const char* key, void* value, size_t bytes, int64_t timeout_ms) {
  auto* store = static_cast<c10d::Store*>(context);
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  try {
    if (!appears(store, key, deadline)) return SMFAR_ERR_TIMEOUT;
    const std::vector<uint8_t> found = store->get(key);
    if (found.size() != bytes) {
      TORCH_WARN("smfar: key ", key, " holds ", found.size(), " bytes, not ", bytes);
      return SMFAR_ERR_SYSTEM;
    }
    std::memcpy(value, found.data(), bytes);
    return SMFAR_OK;
  } catch (const std::exception& error) {
    TORCH_WARN("smfar: the store lost key ", key, ": ", error.what());
    return SMFAR_ERR_SYSTEM;
  }
}

} // namespace

smfar_store storeCallbacks(c10d::Store* store) { return {store, set, get}; }

} // namespace smfar
