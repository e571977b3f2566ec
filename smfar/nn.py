"""Modules for tensor-parallel models."""

import torch

from smfar import ops


class FusedRMSNorm(torch.nn.Module):
    """torch.nn.RMSNorm of the sum over ranks of its input: the all-reduce that ends a row-parallel
    layer, the residual's addition and the norm that follows, in one launch.

    In place of `norm(residual + all_reduce(x))` write `norm(x, residual)`.

    Args:
        hidden: elements of the last dimension.
        eps: added to the mean square.
        elementwise_affine: False: no weight.
        group, device, dtype: of the ranks, and of the weight.
    """

    def __init__(
        self, hidden, eps=1e-6, elementwise_affine=True, group=None, device=None, dtype=None
    ):
        super().__init__()
        self.hidden, self.eps, self.group = hidden, eps, group
        weight = torch.ones(hidden, device=device, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", weight if weight is None else torch.nn.Parameter(weight))

    def forward(self, x, residual=None):
        """The norm; with a residual also the sum that was normalised. See
        smfar.ops.all_reduce_rms_norm."""
        return ops.all_reduce_rms_norm(x, self.weight, self.eps, residual, self.group)

    def extra_repr(self):
        return f"{self.hidden}, eps={self.eps}, elementwise_affine={self.weight is not None}"
