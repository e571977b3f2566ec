"""All-reduce, residual and RMSNorm in one: what follows a row-parallel layer.

Gradients are those of tensor parallelism: results are the same on every rank, so is the gradient
that comes back, and every rank's part of a sum has the sum's gradient. So the backward needs no
other rank. (The layer that takes the results sums what its shards send back, as column-parallel
layers do.)
"""

import torch
import torch.distributed as dist

from smfar import backend


def remember(ctx, inputs, output):
    _, weight, eps, _, keep_sums, _ = inputs
    if not keep_sums:
        raise ValueError("smfar::all_reduce_rms_norm: gradients need keep_sums=True")
    ctx.save_for_backward(output[1], weight)
    ctx.eps = eps


def differentiate(ctx, grad, grad_sums):
    """With s the sums, r = 1 / sqrt(mean(s^2) + eps) and g = grad * weight: of s it is
    r (g - s r^2 mean(g s)), and of the weight the sum over rows of grad s r."""
    sums, weight = ctx.saved_tensors
    wide = torch.float64 if sums.dtype == torch.float64 else torch.float32
    s, g = sums.to(wide), grad.to(wide)
    r = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
    grad_weight = None
    if weight is not None:
        grad_weight = (g * s * r).reshape(-1, s.shape[-1]).sum(0).to(weight.dtype)
        g = g * weight.to(wide)
    mean = (g * s).mean(-1, keepdim=True)
    of_sums = (r * (g - s * r.square() * mean)).to(sums.dtype)
    if grad_sums is not None:
        of_sums = of_sums + grad_sums
    return of_sums, grad_weight, None, of_sums if ctx.needs_input_grad[3] else None, None, None


def register():
    """Gives the operator its backward; called once the operator is there."""
    torch.library.register_autograd(
        "smfar::all_reduce_rms_norm", differentiate, setup_context=remember
    )


def group_of(group):
    group = backend.joined(group)
    if not torch.compiler.is_compiling():
        backend.shim()  # registers the operators; while compiling they are, the group being there
    return group


def needs_grad(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def all_reduce_rms_norm(x, weight=None, eps=1e-6, residual=None, group=None):
    """`rms_norm(all_reduce(x) + residual, weight, eps)` over the last dimension, in one launch.

    Collective, in order on the current stream as all_reduce_ is. The sum over ranks is rounded to
    x's dtype, and so is that with the residual: what is normalised is what PyTorch would see.
    Statistics are in float32. Results are the same to the bit on every rank.

    Differentiable; gradients are tensor parallelism's (see smfar/norm.py): that of x is the sum's,
    without a collective. Every rank must agree on whether gradients are wanted. Works under
    torch.compile. float64 is done in steps, without a kernel of its own.

    Args:
        x: [..., hidden], of float16, bfloat16, float32 or float64; not changed.
        weight: [hidden], of any of these dtypes; None: ones.
        eps: added to the mean square, inside the root.
        residual: like x, the same on every rank; not changed.
        group: default the default group; its backend for the tensor's device must be smfar.

    Returns:
        The normalised tensor, like x; with a residual also the sum that was normalised, like x: the
        next layer's residual.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, or a group that smfar does not serve.
        NotImplementedError: x is of another dtype.
        torch.distributed.DistBackendError: the group has failed.
    """
    name = group_of(group).group_name
    keep = residual is not None or needs_grad(x, weight, residual)
    out, sums = torch.ops.smfar.all_reduce_rms_norm(x, weight, eps, residual, keep, name)
    return out if residual is None else (out, sums)


def all_reduce_rms_norm_(
    x, weight=None, eps=1e-6, residual=None, group=None, *, residual_layout="replicated"
):
    """The same in place, for inference: x becomes the result, `residual` the sum. Returns x.

    With both from smfar.empty nothing is copied on the way. No gradients, no float64.

    Args:
        x: as for all_reduce_rms_norm, contiguous.
        residual: contiguous; like x with residual_layout="replicated". With "sharded" every rank
            holds the rows alone that own_rows says, [rows, hidden], and the sum goes nowhere else:
            the faster of the two.
        residual_layout: the same on every rank. A replicated residual lies in the window on every
            rank, at one place, or on none.
    """
    if residual_layout not in ("replicated", "sharded"):
        raise ValueError(
            f'smfar.ops.all_reduce_rms_norm_: residual_layout is "{residual_layout}"; '
            '"replicated" and "sharded" will do'
        )
    if needs_grad(x, weight, residual):
        raise ValueError(
            "smfar.ops.all_reduce_rms_norm_ has no gradients: use all_reduce_rms_norm, or "
            "torch.no_grad()"
        )
    name = group_of(group).group_name
    sharded = residual_layout == "sharded"
    torch.ops.smfar.all_reduce_rms_norm_(x, weight, eps, residual, sharded, name)
    return x


def own_rows(rows, group=None):
    """The slice of `rows` rows that this rank sums and normalises when a residual is sharded."""
    group = group_of(group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    return slice(rows * rank // ranks, rows * (rank + 1) // ranks)
