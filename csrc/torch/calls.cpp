#include "calls.h"

#include <algorithm>

namespace smfar {

using Tensors = ProcessGroupSmfar::Tensors;

const at::Tensor& theOne(const Tensors& tensors, const char* collective) {
  SMFAR_CHECK_ARGUMENT(tensors.size() == 1, "smfar: ", collective, " takes one tensor, not ",
                       tensors.size());
  return tensors.front();
}

const Tensors& theOneList(const std::vector<Tensors>& lists, size_t ranks, const char* collective) {
  SMFAR_CHECK_ARGUMENT(lists.size() == 1, "smfar: ", collective, " takes one list of tensors, not ",
                       lists.size());
  SMFAR_CHECK_ARGUMENT(lists.front().size() == ranks, "smfar: ", collective, ": got ",
                       lists.front().size(), " tensors in the list for ", ranks, " ranks");
  return lists.front();
}

void checkKind(const Tensors& tensors, const char* collective) {
  SMFAR_CHECK_ARGUMENT(!tensors.empty(), "smfar: ", collective, ": got no tensors");
  for (const at::Tensor& tensor : tensors) {
    checkTensor(tensor, collective);
    SMFAR_CHECK_ARGUMENT(tensor.device() == tensors.front().device(), "smfar: ", collective,
                         ": got tensors on several devices, ", tensors.front().device(), " and ",
                         tensor.device());
    SMFAR_CHECK_ARGUMENT(tensor.scalar_type() == tensors.front().scalar_type(),
                         "smfar: ", collective, ": got dtypes ", tensors.front().scalar_type(),
                         " and ", tensor.scalar_type(), " in one call; they must be equal");
  }
}

Tensors joined(const Tensors& list, const at::Tensor& one) {
  Tensors all = list;
  all.push_back(one);
  return all;
}

void checkWhole(const at::Tensor& whole, const at::Tensor& part, int ranks, const char* collective,
                const char* which) {
  checkKind({part, whole}, collective);
  SMFAR_CHECK_ARGUMENT(whole.numel() == part.numel() * ranks, "smfar: ", collective, ": the ",
                       which, " must have ", ranks, " times the ", part.numel(),
                       " elements of the other tensor, not ", whole.numel());
}

bool sizesDiffer(const Tensors& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const at::Tensor& part) { return part.numel() != parts.front().numel(); });
}

void checkOwn(const Tensors& parts, const at::Tensor& own, int rank, const char* collective,
              const char* which) {
  checkKind(joined(parts, own), collective);
  const at::Tensor& part = parts[static_cast<size_t>(rank)];
  SMFAR_CHECK_ARGUMENT(part.numel() == own.numel(), "smfar: ", collective, ": ", which, " number ",
                       rank, " must have the ", own.numel(),
                       " elements of this rank's other tensor, not ", part.numel());
}

size_t unitsOf(const at::Tensor& tensor) {
  return flatBytes(tensor).dtype == SMFAR_U8 ? static_cast<size_t>(tensor.element_size()) : 1;
}

const void* const* readOnly(const std::vector<void*>& pointers) { return pointers.data(); }

WorkSmfar::Plan planOf(const Names& names, Tensors inputs, Tensors outputs, bool async,
                       Buffers& buffers) {
  const c10::Device device = (inputs.empty() ? outputs : inputs).front().device();
  WorkSmfar::Plan plan{names.type,         names.name, names.title, std::move(inputs),
                       std::move(outputs), device,     async};
  plan.copies = buffers.takeCopies();
  plan.stand_ins = buffers.takeStandIns();
  return plan;
}

} // namespace smfar
