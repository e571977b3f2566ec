"""Two tensor-parallel transformer layers: all-reduce, residual and RMSNorm in one, and one by one.

torchrun --nproc-per-node 4 examples/rms_norm.py
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention

import smfar

TOKENS, DIM, HEADS, EPS = 256, 512, 8, 1e-6


class Layer(nn.Module):
    """Each rank has some of the heads and columns; both halves end in a sum over ranks."""

    def __init__(self, ranks, fused):
        super().__init__()
        self.heads, self.fused = HEADS // ranks, fused
        self.qkv = nn.Linear(DIM, 3 * DIM // ranks, bias=False)
        self.out = nn.Linear(DIM // ranks, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM // ranks, bias=False)
        self.down = nn.Linear(4 * DIM // ranks, DIM, bias=False)
        self.norms = nn.ModuleList(smfar.nn.FusedRMSNorm(DIM, EPS) for _ in range(2))

    def end(self, norm, x, residual):
        if self.fused:
            return norm(x, residual)
        dist.all_reduce(x)
        residual = residual + x
        return rms_norm(residual, (DIM,), norm.weight, EPS), residual

    def forward(self, x, residual):
        q, k, v = self.qkv(x).view(TOKENS, 3, self.heads, -1).permute(1, 2, 0, 3)
        x = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
        x, residual = self.end(self.norms[0], self.out(x.reshape(TOKENS, -1)), residual)
        return self.end(self.norms[1], self.down(gelu(self.up(x))), residual)


@torch.no_grad()
def run(fused, device):
    torch.manual_seed(dist.get_rank())
    layers = [Layer(dist.get_world_size(), fused).to(device) for _ in range(2)]
    torch.manual_seed(0)
    start = torch.randn(TOKENS, DIM).to(device)
    for _ in range(2):  # the second time counts
        begin, residual = time.perf_counter(), start
        x = rms_norm(start, (DIM,), None, EPS)
        for layer in layers:
            x, residual = layer(x, residual)
        result = x.cpu()  # waits
    return result, 1e3 * (time.perf_counter() - begin)


dist.init_process_group("smfar")
device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
(fused, fused_ms), (plain, plain_ms) = run(True, device), run(False, device)
torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-3)
print(f"rank {dist.get_rank()}: alike; {fused_ms:.1f} ms in one, {plain_ms:.1f} one by one")
dist.destroy_process_group()
