// See tensors.h.
#include "tensors.h"

namespace smfar {

namespace {

std::optional<smfar_dtype> dtypeOf(at::ScalarType type) {
  switch (type) {
  case at::kByte:
    return SMFAR_U8;
  case at::kChar:
    return SMFAR_I8;
  case at::kShort:
    return SMFAR_I16;
  case at::kInt:
    return SMFAR_I32;
  case at::kLong:
    return SMFAR_I64;
  case at::kHalf:
    return SMFAR_F16;
  case at::kBFloat16:
    return SMFAR_BF16;
  case at::kFloat:
    return SMFAR_F32;
  case at::kDouble:
    return SMFAR_F64;
  case at::kBool:
    return SMFAR_BOOL;
  case at::kComplexFloat:
    return SMFAR_C64;
  case at::kComplexDouble:
    return SMFAR_C128;
  case at::kFloat8_e4m3fn:
    return SMFAR_F8_E4M3;
  case at::kFloat8_e5m2:
    return SMFAR_F8_E5M2;
  default:
    return std::nullopt;
  }
}

void* pointerOf(const at::Tensor& tensor) { return tensor.numel() ? tensor.data_ptr() : nullptr; }

} // namespace

void checkTensor(const at::Tensor& tensor, const char* collective) {
  SMFAR_CHECK_ARGUMENT(tensor.defined(), "smfar: ", collective, ": got an undefined tensor");
  SMFAR_CHECK_ARGUMENT(tensor.layout() == at::kStrided, "smfar: ", collective,
                       ": got a tensor of layout ", tensor.layout(),
                       "; use a dense one, e.g. .to_dense()");
  SMFAR_CHECK_ARGUMENT(!tensor.is_quantized(), "smfar: ", collective,
                       ": got a quantised tensor; use .int_repr() or .dequantize()");
  SMFAR_CHECK_ARGUMENT(tensor.device().is_cpu() || tensor.device().is_cuda(), "smfar: ", collective,
                       ": got a tensor on ", tensor.device(), "; use one on cpu or cuda");
  SMFAR_CHECK_ARGUMENT(!tensor.is_conj() && !tensor.is_neg(), "smfar: ", collective,
                       ": got a lazily conjugated or negated tensor; use .resolve_conj() or "
                       ".resolve_neg()");
}

void checkAlike(const std::vector<at::Tensor>& tensors, const char* collective) {
  SMFAR_CHECK_ARGUMENT(!tensors.empty(), "smfar: ", collective, ": got an empty list of tensors");
  const at::Tensor& first = tensors.front();
  for (const at::Tensor& tensor : tensors) {
    checkTensor(tensor, collective);
    SMFAR_CHECK_ARGUMENT(tensor.scalar_type() == first.scalar_type(), "smfar: ", collective,
                         ": got dtypes ", first.scalar_type(), " and ", tensor.scalar_type(),
                         " in one call; they must be equal");
    SMFAR_CHECK_ARGUMENT(tensor.device() == first.device(), "smfar: ", collective, ": got devices ",
                         first.device(), " and ", tensor.device(),
                         " in one call; they must be equal");
    SMFAR_CHECK_ARGUMENT(tensor.numel() == first.numel(), "smfar: ", collective,
                         ": got tensors of ", first.numel(), " and ", tensor.numel(),
                         " elements; they must be equal");
  }
}

Flat flatBytes(const at::Tensor& tensor) {
  const auto dtype = dtypeOf(tensor.scalar_type());
  const auto count = static_cast<size_t>(tensor.numel());
  if (dtype) return {pointerOf(tensor), count, *dtype};
  return {pointerOf(tensor), count * tensor.element_size(), SMFAR_U8};
}

Flat flatNumbers(const at::Tensor& tensor) {
  const auto dtype = dtypeOf(tensor.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(dtype.has_value(), "smfar: all_reduce of ", tensor.scalar_type(),
                              " is not available; convert to float32 or int64 first");
  return {pointerOf(tensor), static_cast<size_t>(tensor.numel()), *dtype};
}

smfar_op reduceOp(const c10d::ReduceOp& op) {
  static const smfar_op ops[] = {SMFAR_SUM,  SMFAR_AVG, SMFAR_PRODUCT, SMFAR_MIN,       SMFAR_MAX,
                                 SMFAR_BAND, SMFAR_BOR, SMFAR_BXOR,    SMFAR_PREMUL_SUM};
  const auto number = static_cast<size_t>(op.op_);
  SMFAR_CHECK_ARGUMENT(number < std::size(ops), "smfar: unknown ReduceOp number ", number);
  return ops[number];
}

double scaleOf(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 0;
  const auto* given = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  SMFAR_CHECK_ARGUMENT(given != nullptr, "smfar: PREMUL_SUM brings no factor; make the op with "
                                         "torch.distributed._make_nccl_premul_sum(factor)");
  if (!given->tensor_factor.defined()) return given->double_factor;
  SMFAR_CHECK_ARGUMENT(given->tensor_factor.numel() == 1,
                       "smfar: PREMUL_SUM takes a tensor of one ", "element as its factor, not of ",
                       given->tensor_factor.numel());
  return given->tensor_factor.item<double>();
}

at::Tensor windowTensor(const std::shared_ptr<Communicator>& communicator, at::IntArrayRef sizes,
                        const at::TensorOptions& options) {
  const size_t bytes = c10::multiply_integers(sizes) * options.dtype().itemsize();
  if (bytes == 0) return at::empty(sizes, options);
  void* pointer = nullptr;
  check(smfar_window_alloc(communicator->raw(), bytes, &pointer),
        c10::str("allocating ", bytes, " bytes in the window"));
  auto deleter = [communicator](void* range) {
    if (communicator->here()) smfar_window_free(communicator->raw(), range);
  };
  return at::for_blob(pointer, sizes)
      .deleter(deleter)
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

} // namespace smfar
