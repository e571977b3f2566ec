"""Trains a small network on handwritten digits, once over smfar and once over gloo, and compares.

torchrun --nproc-per-node 4 examples/ddp.py

Exits with 1 unless both runs agree and smfar's gradients were summed by multimem instructions.
"""

import argparse
import os
import sys

# Gradients lie in smfar's window: nothing is copied before or after the all-reduce.
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smfar

SEED, BATCH, HELD_OUT = 7, 32, 360


def load_digits():
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        sys.exit("this example needs the digits of scikit-learn: pip install scikit-learn")
    images, labels = load(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    return images[order], torch.tensor(labels)[order]


def network():
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def train(name, group, images, labels, epochs):
    """Returns the first step's gradients, and the trained network's parameters and figures."""
    rank, stride = dist.get_rank(), BATCH * dist.get_world_size()
    train_count = len(images) - HELD_OUT
    model = DistributedDataParallel(network(), process_group=group, gradient_as_bucket_view=True)
    # Sums round differently over smfar and gloo. Small steps keep that small: at four times this
    # rate two runs that round differently end more than a percent apart.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(SEED)
    first, losses = None, []
    for epoch in range(epochs):
        mixed = torch.randperm(train_count, generator=order)
        for at in range(0, train_count - stride + 1, stride):
            mine = mixed[at + rank * BATCH : at + (rank + 1) * BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            if first is None:
                first = flat(p.grad for p in model.parameters())
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            mean = sum(losses) / len(losses)
            print(f"{name:>5}: epoch {epoch + 1}/{epochs}, loss {mean:.4f}", flush=True)
        losses.clear()
    return {"gradients": first, "parameters": flat(model.parameters())} | evaluate(
        model.module, images, labels, train_count
    )


@torch.no_grad()
def evaluate(model, images, labels, train_count):
    scores = model(images)
    losses = nn.functional.cross_entropy(scores, labels, reduction="none")
    right = (scores.argmax(1) == labels).float()
    return {
        "loss": losses[:train_count].mean().item(),
        "accuracy": right[:train_count].mean().item(),
        "held-out": right[train_count:].mean().item(),
    }


def equal_on_all_ranks(tensor, group):
    other = tensor.clone()
    dist.broadcast(other, 0, group=group)
    different = (other.view(torch.int32) != tensor.view(torch.int32)).sum()
    dist.all_reduce(different, group=group)
    return different.item() == 0


def total(value, group):
    tensor = torch.tensor(value)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def compare(ours, theirs, difference, multimem, gloo):
    """What must hold, by name; every rank calls."""
    return {
        "parameters equal on all ranks, smfar": equal_on_all_ranks(ours["parameters"], gloo),
        "parameters equal on all ranks, gloo": equal_on_all_ranks(theirs["parameters"], gloo),
        "first gradients within 1e-6": difference < 1e-6,
        "losses within 1 %": abs(ours["loss"] - theirs["loss"]) <= 0.01 * theirs["loss"],
        "accuracies within a point": all(
            abs(ours[which] - theirs[which]) <= 0.01 for which in ("accuracy", "held-out")
        ),
        "summed by multimem instructions": multimem > 0,
    }


def show(runs, paths, difference, multimem):
    for name, run in runs.items():
        print(
            f"{name:>5}: loss {run['loss']:.5f}, accuracy {run['accuracy']:.2%} in training, "
            f"{run['held-out']:.2%} held out"
        )
    print(f"first gradients differ by {difference:.1e} (norm of difference / norm)")
    for path in paths:
        print(
            f"{path.algorithm}: {path.calls} all-reduces, {path.bytes} bytes "
            f"({path.staged_bytes} staged), {path.blocks} blocks of {path.threads} threads: "
            f"{path.reason}"
        )
    print(f"multimem loads executed by the software switch, all ranks: {multimem}")
    if multimem == 0:
        print("multicast was off or absent: the gradients went through peer memory")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--allow-peer", action="store_true", help="pass without multicast, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = load_digits()
    dist.init_process_group("smfar")
    gloo = dist.new_group(backend="gloo")

    ours = train("smfar", dist.group.WORLD, images, labels, args.epochs)
    paths = [path for path in smfar.report(device="cpu") if path.collective == "all_reduce"]
    multimem = total(sum(kernel.multimem_loads for kernel in smfar.soft_stats()), gloo)
    theirs = train("gloo", gloo, images, labels, args.epochs)

    away = (ours["gradients"] - theirs["gradients"]).norm() / theirs["gradients"].norm()
    checks = compare(ours, theirs, away.item(), multimem, gloo)
    if args.allow_peer:
        del checks["summed by multimem instructions"]
    failed = total(sum(not passed for passed in checks.values()), gloo)
    if dist.get_rank() == 0:
        show({"smfar": ours, "gloo": theirs}, paths, away.item(), multimem)
        for name, passed in checks.items():
            print(f"{'ok' if passed else 'FAILED':>6}  {name}")
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
