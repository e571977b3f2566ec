"""The transformer that bench_train.py trains: causal, pre-norm, random weights, synthetic tokens.

Tokens are drawn from a skewed distribution, so that there is something to learn within a few steps.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

SEED = 7
DEVIATION = 0.02  # of the weights
SKEW = 3
EPS = 1e-5  # of norms; the default is much for bf16


@dataclass(frozen=True)
class Size:
    vocabulary: int
    width: int
    layers: int
    heads: int
    tokens: int  # of a sequence
    batch: int  # sequences of a rank and step


SIZES = {
    "1b": Size(vocabulary=32000, width=2048, layers=18, heads=16, tokens=1024, batch=4),
    "small": Size(vocabulary=512, width=64, layers=2, heads=4, tokens=32, batch=4),
}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.before_attention, self.before_mlp = (nn.RMSNorm(width, EPS) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attention(self, x):
        parts = self.qkv(x).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    """Tokens (batch, length) to the mean loss of predicting each from those before it."""

    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, EPS)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens):
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(given) + self.places(torch.arange(given.shape[1], device=given.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x)).float()
        return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def make(size, device):
    """A new one in bf16, the same whenever it is made on one kind of device."""
    with torch.device(device):
        model = Transformer(size).bfloat16()
    torch.manual_seed(SEED)
    onto_stream = DEVIATION / (2 * size.layers) ** 0.5  # so that the blocks' sum keeps its size
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            ends = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=onto_stream if ends else DEVIATION)
    return model


def batch(size, rank, step):
    """(batch, tokens + 1) on the CPU: a rank's in a step."""
    generator = torch.Generator().manual_seed(1_000_000 * rank + step)
    even = torch.rand(size.batch, size.tokens + 1, generator=generator)
    return (even**SKEW * size.vocabulary).long()
