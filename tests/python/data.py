"""Inputs that differ per rank and iteration, and what collectives must make of them."""

import torch
import torch.distributed as dist

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SUMMABLE = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64]
MOVABLE = [
    *INTEGERS,
    *FLOATS,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.float8_e4m3fn,
]
SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 100_003]


CPU = torch.device("cpu")
places = [CPU]  # tests/gpu puts a GPU here


def home(group=None):
    """Where the tensors of a test are that can be on GPUs, too; over gloo they stay on the CPU."""
    return CPU if group is not None and dist.get_backend(group) == "gloo" else places[-1]


def numbers(rank, iteration, count, dtype):
    """Small integers, so that every sum of a few ranks is exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    return torch.randint(-8, 9, (count,), generator=generator).to(dtype)


def anything(rank, iteration, count, dtype):
    """Any bits at all (but bools), for collectives that only move."""
    generator = torch.Generator().manual_seed(1000 * iteration + rank)
    size = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, high, (count * size,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def expected_sum(ranks, iteration, count, dtype):
    wide = sum(numbers(rank, iteration, count, torch.float64) for rank in range(ranks))
    return wide.to(dtype)


def expected_average(ranks, iteration, count, dtype):
    wide = sum(numbers(rank, iteration, count, torch.float64) for rank in range(ranks)) / ranks
    return wide.trunc().to(dtype) if not dtype.is_floating_point else wide.to(dtype)


def poison(tensor):
    """Fills a tensor that is to be overwritten with bytes that no test expects."""
    if tensor.numel():
        bits(tensor).fill_(1 if tensor.dtype == torch.bool else 0xA5)
    return tensor
