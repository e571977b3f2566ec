// The yardstick of `python -m smfar bench`: the data movement of the two-shot all-reduce (read n
// copies, add, write n copies, each rank for its share) as a plain loop over shared memory, with no
// collective library at all. Nothing but the bench uses it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace smfar {

// At the start of memory that all ranks share, zero at first.
struct SpinBarrier {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> round;
};

// Every rank calls it with the same arguments but `rank`: copies[r] is rank r's tensor as mapped
// here. Afterwards every copy holds the sum. Blocks until all ranks have done their share.
void plainAllReduce(const std::vector<float*>& copies, size_t count, size_t rank,
                    SpinBarrier& barrier);

} // namespace smfar
