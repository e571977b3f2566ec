// See plain_loop.h.
#include "plain_loop.h"

#include <sched.h>

#include <algorithm>

namespace smfar {

namespace {

void meet(SpinBarrier& barrier, uint32_t ranks) {
  const uint32_t round = barrier.round.load();
  if (barrier.arrived.fetch_add(1) + 1 == ranks) {
    barrier.arrived.store(0);
    barrier.round.store(round + 1);
    return;
  }
  while (barrier.round.load() == round)
    sched_yield();
}

// A piece stays in the first-level cache between its additions and its stores.
void reducePiece(const std::vector<float*>& copies, size_t first, size_t count) {
  constexpr size_t kPiece = 1024;
  float sum[kPiece];
  for (size_t at = first; at < first + count; at += kPiece) {
    const size_t here = std::min(kPiece, first + count - at);
    std::copy_n(copies[0] + at, here, sum);
    for (size_t r = 1; r < copies.size(); r++) {
      const float* copy = copies[r] + at;
      for (size_t i = 0; i < here; i++)
        sum[i] += copy[i];
    }
    for (float* copy : copies)
      std::copy_n(sum, here, copy + at);
  }
}

} // namespace

void plainAllReduce(const std::vector<float*>& copies, size_t count, size_t rank,
                    SpinBarrier& barrier) {
  const size_t ranks = copies.size();
  const size_t share = (count + ranks - 1) / ranks;
  const size_t first = std::min(count, rank * share);
  meet(barrier, static_cast<uint32_t>(ranks));
  reducePiece(copies, first, std::min(share, count - first));
  meet(barrier, static_cast<uint32_t>(ranks));
}

} // namespace smfar
