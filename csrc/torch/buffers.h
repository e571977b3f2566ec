// The memory that the core works on in place of tensors that it cannot: of any strides, and not
// aligned. They are copied to a tensor of their own before, and results back after the collective.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tensors.h"

namespace smfar {

// Done once the collective has ended.
struct CopyBack {
  at::Tensor to, from;
};

class Buffers {
 public:
  explicit Buffers(const char* collective) : collective_(collective) {}

  // Each checks the tensor and returns it, or what stands in for it: its values are used, written,
  // or both. Elements that are written must not share memory.
  at::Tensor read(const at::Tensor& tensor);
  at::Tensor write(const at::Tensor& tensor);

  // As read, of values that are used after `outputs` are written: a copy where they share memory.
  at::Tensor readBefore(const std::vector<at::Tensor>& outputs, const at::Tensor& tensor);
  at::Tensor update(const at::Tensor& tensor);

  // As update where this rank `writes`, else as read; refuses what only one of them would.
  at::Tensor updateIf(bool writes, const at::Tensor& tensor);

  // What has been written so far must not share memory: refuses the same tensor twice.
  void checkApart() const;

  // Refuses a tensor that is written to while it shares memory with one that is read, unless they
  // are the same elements.
  void checkApart(const at::Tensor& written, const at::Tensor& read) const;

  // Refuses a part that shares memory with a whole of several like it, unless it is one of those.
  void checkPart(const at::Tensor& whole, const at::Tensor& part) const;

  std::vector<CopyBack> takeCopies() { return std::move(copies_); }
  std::vector<at::Tensor> takeStandIns() { return std::move(stand_ins_); }

 private:
  at::Tensor keep(at::Tensor stand_in);
  void checkWritable(const at::Tensor& tensor) const;
  at::Tensor written(const at::Tensor& tensor, bool read);

  const char* const collective_;
  std::vector<at::Tensor> written_;
  std::vector<CopyBack> copies_;
  std::vector<at::Tensor> stand_ins_;
};

} // namespace smfar
