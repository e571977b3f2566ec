// Memory pools in the window: ranges of it that an allocator of PyTorch's, a torch.cuda.MemPool,
// hands out. A pool's range is taken by all ranks together; what becomes of it is each rank's own
// affair, so no rank ever waits for another inside an allocation. Where ranks have handed out
// different parts their tensors lie at unequal offsets, and kernels go over peers.
//
// PyTorch knows an allocator by two functions without a context, so there is a fixed number of
// pools per process, each with two functions of its own: smfar_pool_alloc_0, smfar_pool_free_0, and
// so on.
#pragma once

#include <cstddef>
#include <memory>

#include "communicator.h"

namespace smfar {

constexpr int kPools = 16;

// What a pool holds, in bytes.
struct PoolUse {
  size_t capacity;
  size_t taken;
};

// Collective. Takes `bytes` of the window; returns the pool's number.
int openPool(const std::shared_ptr<Communicator>& communicator, size_t bytes);

// The pool hands out nothing more. Its range, and its hold on the communicator, are given back by a
// later call of these functions, once nothing of it is in use.
void closePool(int number);

PoolUse usePool(int number);

} // namespace smfar
