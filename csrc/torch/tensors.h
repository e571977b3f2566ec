// What a tensor must be to take part in a collective, and its translation into the core's terms:
// pointer, count, dtype, op. Refusals say what was wrong and what would do.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "communicator.h"

namespace smfar {

// A tensor's memory as the core sees it.
struct Flat {
  void* pointer;
  size_t count;
  smfar_dtype dtype;
};

// Throws unless `tensor` is a dense one of a plain dtype, on cpu or cuda; it may have any strides.
void checkTensor(const at::Tensor& tensor, const char* collective);

// Throws unless all tensors pass checkTensor and share dtype, device and number of elements.
void checkAlike(const std::vector<at::Tensor>& tensors, const char* collective);

// For moving: any dtype, those without a name as bytes.
Flat flatBytes(const at::Tensor& tensor);

// For reducing; throws for dtypes that the core has no name for. Which ops it serves of the others
// is its own answer.
Flat flatNumbers(const at::Tensor& tensor);

smfar_op reduceOp(const c10d::ReduceOp& op);

// The factor that a PREMUL_SUM brings, 0 for other ops. One that a tensor on a GPU holds is waited
// for.
double scaleOf(const c10d::ReduceOp& op);

// Collective. A tensor in the communicator's window, given back by its deleter (not collective).
at::Tensor windowTensor(const std::shared_ptr<Communicator>& communicator, at::IntArrayRef sizes,
                        const at::TensorOptions& options);

} // namespace smfar
