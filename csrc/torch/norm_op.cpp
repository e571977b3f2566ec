// torch.ops.smfar.all_reduce_rms_norm and its in-place form: an all-reduce, a residual's addition
// and an RMSNorm in one, on the current stream. See smfar/norm.py, which has the backward.
//
// f64 has no kernel: there the three are done one after the other.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/library.h>

#include "ops.h"
#include "stream.h"

namespace smfar {

namespace {

using MaybeTensor = std::optional<at::Tensor>;

constexpr const char* kName = "all_reduce_rms_norm";

// What both forms are made from. With `sums` undefined nobody wants them.
struct Norm {
  at::Tensor x, out, sums, residual, weight;
  double eps;
  smfar_sums layout = SMFAR_SUMS_NONE;
};

at::Tensor orNone(const MaybeTensor& tensor) { return tensor ? *tensor : at::Tensor(); }

void checkWeight(const at::Tensor& x, const at::Tensor& weight) {
  if (!weight.defined()) return;
  SMFAR_CHECK_ARGUMENT(weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), "smfar: ", kName,
                       ": a weight of shape ", weight.sym_sizes(), " for rows of ", x.sym_size(-1),
                       " elements; give one number per element");
  SMFAR_CHECK_ARGUMENT(weight.device() == x.device(), "smfar: ", kName, ": the weight is on ",
                       weight.device(), ", the tensor on ", x.device());
  SMFAR_CHECK_ARGUMENT(weight.is_floating_point() && weight.element_size() > 1, "smfar: ", kName,
                       ": a weight of ", weight.scalar_type(),
                       "; float16, bfloat16, float32 and float64 will do");
}

// What can be said without memory: also of fake tensors.
void checkShapes(const at::Tensor& x, const MaybeTensor& weight) {
  SMFAR_CHECK_ARGUMENT(x.dim() > 0, "smfar: ", kName, ": a tensor without dimensions has no rows");
  TORCH_CHECK_NOT_IMPLEMENTED(x.is_floating_point() && x.element_size() > 1, "smfar: ", kName,
                              " of ", x.scalar_type(),
                              " is not available: it takes float16, bfloat16, float32 and float64");
  checkWeight(x, orNone(weight));
}

void checkResidual(const at::Tensor& x, const at::Tensor& residual, bool sharded) {
  SMFAR_CHECK_ARGUMENT(residual.scalar_type() == x.scalar_type() && residual.device() == x.device(),
                       "smfar: ", kName, ": the residual is ", residual.scalar_type(), " on ",
                       residual.device(), ", the tensor ", x.scalar_type(), " on ", x.device());
  if (sharded) return;
  SMFAR_CHECK_ARGUMENT(residual.sym_sizes() == x.sym_sizes(), "smfar: ", kName,
                       ": a replicated residual of shape ", residual.sym_sizes(),
                       " for a tensor of shape ", x.sym_sizes(), "; they must be alike");
}

void* pointerOf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() ? tensor.data_ptr() : nullptr;
}

smfar_rms_norm describe(const Norm& norm) {
  smfar_rms_norm call{};
  call.hidden = static_cast<size_t>(norm.x.size(-1));
  call.rows = call.hidden ? static_cast<size_t>(norm.x.numel()) / call.hidden : 0;
  call.dtype = flatNumbers(norm.x).dtype;
  call.weight = pointerOf(norm.weight);
  if (norm.weight.defined()) call.weight_dtype = flatNumbers(norm.weight).dtype;
  call.eps = norm.eps;
  call.sums_layout = norm.layout;
  call.residual = pointerOf(norm.residual);
  if (norm.layout == SMFAR_SUMS_REPLICATED) call.sums = pointerOf(norm.sums);
  return call;
}

void run(ProcessGroupSmfar& group, const Norm& norm) {
  const smfar_rms_norm call = describe(norm);
  const auto made = group.communicator(norm.x.device());
  const smfar_stream stream = norm.x.is_cuda() ? currentHandle(norm.x.device()) : nullptr;
  const uint64_t sequence = made->enqueue([&](smfar_comm* comm) {
    check(smfar_all_reduce_rms_norm(pointerOf(norm.x), pointerOf(norm.out), &call, comm, stream),
          kName);
  });
  if (norm.x.is_cuda()) return;
  try {
    made->wait(sequence, std::nullopt, kName);
  } catch (...) {
    std::vector<at::Tensor> kept{norm.x, norm.out};
    for (const at::Tensor& tensor : {norm.sums, norm.residual, norm.weight})
      if (tensor.defined()) kept.push_back(tensor);
    keepTensors(made, kept); // a kernel may still write to them
    throw;
  }
}

// One after the other, on a copy of x that becomes the sums.
at::Tensor sumsOf(ProcessGroupSmfar& group, const at::Tensor& x, const at::Tensor& residual) {
  at::Tensor sums = x.clone(at::MemoryFormat::Contiguous);
  group.reduceInOrder(sums, SMFAR_SUM);
  return residual.defined() ? sums.add_(residual) : sums;
}

at::Tensor normOf(const at::Tensor& sums, const at::Tensor& weight, double eps) {
  return at::rms_norm_symint(sums, sums.sym_sizes().slice(static_cast<size_t>(sums.dim()) - 1),
                             weight.defined() ? std::make_optional(weight) : std::nullopt, eps);
}

std::tuple<at::Tensor, at::Tensor> normalize(const at::Tensor& x, const MaybeTensor& weight,
                                             double eps, const MaybeTensor& residual,
                                             bool keep_sums, const std::string& name) {
  checkTensor(x, kName);
  checkShapes(x, weight);
  const auto group = groupIn(c10d::resolve_process_group(name), x.device());
  const at::Tensor added = orNone(residual);
  if (added.defined()) checkResidual(x, added, false);
  const at::Tensor nothing = at::empty({0}, x.options());
  if (x.scalar_type() == at::kDouble) {
    const at::Tensor sums = sumsOf(*group, x, added);
    return {normOf(sums, orNone(weight), eps), keep_sums ? sums : nothing};
  }
  Norm norm{.x = x.contiguous(), .eps = eps};
  norm.out = at::empty_like(norm.x, at::MemoryFormat::Contiguous);
  if (weight) norm.weight = weight->contiguous();
  if (added.defined()) norm.residual = added.contiguous();
  if (keep_sums || added.defined()) {
    norm.sums = at::empty_like(norm.out);
    norm.layout = SMFAR_SUMS_REPLICATED;
  }
  run(*group, norm);
  return {norm.out, keep_sums ? norm.sums : nothing};
}

std::tuple<at::Tensor, at::Tensor> normalizeMeta(const at::Tensor& x, const MaybeTensor& weight,
                                                 double, const MaybeTensor& residual,
                                                 bool keep_sums, const std::string&) {
  checkShapes(x, weight);
  if (residual) checkResidual(x, *residual, false);
  const at::Tensor out = at::empty_like(x, at::MemoryFormat::Contiguous);
  return {out, keep_sums ? at::empty_like(out) : at::empty({0}, x.options())};
}

void checkInPlace(const at::Tensor& tensor, const char* which) {
  SMFAR_CHECK_ARGUMENT(tensor.is_contiguous(), "smfar: ", kName, "_: the ", which,
                       " has gaps or another order of dimensions; use .contiguous(), or ", kName);
}

// Rows [first, end) of `rows` are this rank's own.
void checkShard(const ProcessGroupSmfar& group, const at::Tensor& x, const at::Tensor& residual) {
  const int64_t hidden = x.size(-1), rows = hidden ? x.numel() / hidden : 0;
  const int64_t rank = group.getRank(), ranks = group.getSize();
  const int64_t own = rows * (rank + 1) / ranks - rows * rank / ranks;
  SMFAR_CHECK_ARGUMENT(
      residual.dim() > 0 && residual.size(-1) == hidden && residual.numel() == own * hidden,
      "smfar: ", kName, "_: a sharded residual of shape ", residual.sizes(), "; rank ", rank,
      " has ", own, " rows of ", hidden, " elements (smfar.ops.own_rows)");
}

void normalizeInPlace(at::Tensor& x, const MaybeTensor& weight, double eps,
                      const MaybeTensor& residual, bool sharded, const std::string& name) {
  checkTensor(x, kName);
  checkShapes(x, weight);
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != at::kDouble, "smfar: ", kName,
                              "_ of float64 is not available; use ", kName);
  checkInPlace(x, "tensor");
  const auto group = groupIn(c10d::resolve_process_group(name), x.device());
  Norm norm{.x = x, .out = x, .eps = eps};
  if (weight) norm.weight = weight->contiguous();
  if (residual) {
    checkInPlace(*residual, "residual");
    checkResidual(x, *residual, sharded);
    if (sharded) checkShard(*group, x, *residual);
    norm.residual = *residual;
    norm.sums = *residual;
    norm.layout = sharded ? SMFAR_SUMS_SHARDED : SMFAR_SUMS_REPLICATED;
  }
  run(*group, norm);
}

void normalizeInPlaceMeta(at::Tensor& x, const MaybeTensor& weight, double,
                          const MaybeTensor& residual, bool sharded, const std::string&) {
  checkShapes(x, weight);
  if (residual) checkResidual(x, *residual, sharded);
}

} // namespace

} // namespace smfar

TORCH_LIBRARY_FRAGMENT(smfar, library) {
  library.def("all_reduce_rms_norm(Tensor x, Tensor? weight, float eps, Tensor? residual, "
              "bool keep_sums, str group_name) -> (Tensor, Tensor)",
              {at::Tag::pt2_compliant_tag});
  library.def("all_reduce_rms_norm_(Tensor(a!) x, Tensor? weight, float eps, Tensor(b!)? residual, "
              "bool sharded, str group_name) -> ()",
              {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(smfar, CPU, library) {
  library.impl("all_reduce_rms_norm", &smfar::normalize);
  library.impl("all_reduce_rms_norm_", &smfar::normalizeInPlace);
}
TORCH_LIBRARY_IMPL(smfar, CUDA, library) {
  library.impl("all_reduce_rms_norm", &smfar::normalize);
  library.impl("all_reduce_rms_norm_", &smfar::normalizeInPlace);
}
TORCH_LIBRARY_IMPL(smfar, Meta, library) {
  library.impl("all_reduce_rms_norm", &smfar::normalizeMeta);
  library.impl("all_reduce_rms_norm_", &smfar::normalizeInPlaceMeta);
}
