// What the collectives of c10d have in common: checks of what was given, and the plan of a work.
#pragma once

#include "buffers.h"
#include "process_group.h"

namespace smfar {

struct Names {
  c10d::OpType type;
  const char* name;  // "all_reduce"
  const char* title; // "smfar:all_reduce"
};

const at::Tensor& theOne(const ProcessGroupSmfar::Tensors& tensors, const char* collective);
const ProcessGroupSmfar::Tensors& theOneList(const std::vector<ProcessGroupSmfar::Tensors>& lists,
                                             size_t ranks, const char* collective);

// All must have the first one's dtype and device.
void checkKind(const ProcessGroupSmfar::Tensors& tensors, const char* collective);

ProcessGroupSmfar::Tensors joined(const ProcessGroupSmfar::Tensors& list, const at::Tensor& one);

// `whole` is `ranks` parts like `part`, one after the other.
void checkWhole(const at::Tensor& whole, const at::Tensor& part, int ranks, const char* collective,
                const char* which);

// Parts of sizes of their own, one for each rank: mine, of which `own` is the other end, must fit.
bool sizesDiffer(const ProcessGroupSmfar::Tensors& parts);
void checkOwn(const ProcessGroupSmfar::Tensors& parts, const at::Tensor& own, int rank,
              const char* collective, const char* which);

// What the core counts for one element: itself, or the bytes of one that has no name there.
size_t unitsOf(const at::Tensor& tensor);

const void* const* readOnly(const std::vector<void*>& pointers);

WorkSmfar::Plan planOf(const Names& names, ProcessGroupSmfar::Tensors inputs,
                       ProcessGroupSmfar::Tensors outputs, bool async, Buffers& buffers);

} // namespace smfar
