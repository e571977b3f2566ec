// See buffers.h.
#include "buffers.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

namespace smfar {

namespace {

bool isUsable(const at::Tensor& tensor) {
  const size_t aligned = std::min<size_t>(tensor.element_size(), 8);
  return tensor.is_contiguous() &&
         (tensor.numel() == 0 || reinterpret_cast<uintptr_t>(tensor.data_ptr()) % aligned == 0);
}

// The bytes from a tensor's first element to behind its last.
struct Range {
  uintptr_t begin, end;
};

Range rangeOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  return {begin, begin + tensor.nbytes()};
}

bool shareMemory(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }

} // namespace

at::Tensor Buffers::keep(at::Tensor stand_in) {
  stand_ins_.push_back(stand_in);
  return stand_in;
}

at::Tensor Buffers::read(const at::Tensor& tensor) {
  checkTensor(tensor, collective_);
  if (isUsable(tensor)) return tensor;
  return keep(tensor.detach().clone(at::MemoryFormat::Contiguous));
}

at::Tensor Buffers::readBefore(const std::vector<at::Tensor>& outputs, const at::Tensor& tensor) {
  checkTensor(tensor, collective_);
  const bool shared = std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    return shareMemory(rangeOf(output), rangeOf(tensor));
  });
  return shared ? keep(tensor.detach().clone(at::MemoryFormat::Contiguous)) : read(tensor);
}

void Buffers::checkWritable(const at::Tensor& tensor) const {
  checkTensor(tensor, collective_);
  SMFAR_CHECK_ARGUMENT(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                       "smfar: ", collective_, ": got strides ", tensor.strides(), " for sizes ",
                       tensor.sizes(),
                       "; several elements of a result share one place: use .contiguous()");
}

at::Tensor Buffers::written(const at::Tensor& tensor, bool read) {
  checkWritable(tensor);
  written_.push_back(tensor);
  if (isUsable(tensor)) return tensor;
  auto stand_in = keep(read ? tensor.detach().clone(at::MemoryFormat::Contiguous)
                            : at::empty(tensor.sizes(), tensor.options()));
  copies_.push_back({tensor, stand_in});
  return stand_in;
}

at::Tensor Buffers::write(const at::Tensor& tensor) { return written(tensor, false); }

at::Tensor Buffers::update(const at::Tensor& tensor) { return written(tensor, true); }

at::Tensor Buffers::updateIf(bool writes, const at::Tensor& tensor) {
  if (writes) return update(tensor);
  checkWritable(tensor);
  return read(tensor);
}

// Tensors of strides are left out: their ranges say little, and copies back are made one by one.
void Buffers::checkApart() const {
  std::vector<Range> ranges;
  for (const at::Tensor& tensor : written_)
    if (tensor.is_contiguous() && tensor.numel() > 0) ranges.push_back(rangeOf(tensor));
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); i++) {
    SMFAR_CHECK_ARGUMENT(!shareMemory(ranges[i - 1], ranges[i]), "smfar: ", collective_,
                         ": two of the output tensors share memory; each needs its own");
  }
}

void Buffers::checkApart(const at::Tensor& written, const at::Tensor& read) const {
  if (!written.is_contiguous() || !read.is_contiguous()) return;
  const Range out = rangeOf(written), in = rangeOf(read);
  SMFAR_CHECK_ARGUMENT(
      !shareMemory(out, in) || (out.begin == in.begin && out.end == in.end), "smfar: ", collective_,
      ": an input and an output share part of their memory; they must be apart, or "
      "the same");
}

void Buffers::checkPart(const at::Tensor& whole, const at::Tensor& part) const {
  if (!whole.is_contiguous() || !part.is_contiguous()) return;
  const Range all = rangeOf(whole), one = rangeOf(part);
  const bool inside = all.begin <= one.begin && one.end <= all.end;
  SMFAR_CHECK_ARGUMENT(
      !shareMemory(all, one) || (inside && (one.begin - all.begin) % part.nbytes() == 0),
      "smfar: ", collective_,
      ": an input and an output share part of their memory; they must be apart, or "
      "the smaller one a rank's part of the other");
}

} // namespace smfar
