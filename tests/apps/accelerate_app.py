"""An Accelerate program as its users write them. On CPU Accelerate itself would take gloo or MPI
alone; it keeps a process group that it finds, so the program makes that.

torchrun --nproc-per-node N accelerate_app.py BACKEND FOLDER leaves what each rank ends with in
FOLDER/rank<r>.pt.
"""

import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS_AN_EPOCH, BATCH, EPOCHS = 8, 16, 3


def data(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 20, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def evaluate(accelerator, model, loader):
    """The share of right answers; the last batch is uneven over ranks."""
    model.eval()
    right = total = 0
    for inputs, labels in loader:
        guesses = model(inputs).argmax(1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))
        right += (guesses == labels).sum()
        total += len(labels)
    return right / total


def main(backend, folder):
    dist.init_process_group(backend)
    set_seed(11)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ranks = accelerator.num_processes
    network = nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    model, optimizer, train, test = accelerator.prepare(
        network,
        torch.optim.Adam(network.parameters(), lr=0.01),
        DataLoader(data(1, STEPS_AN_EPOCH * BATCH * ranks), BATCH, shuffle=True),
        DataLoader(data(2, 4 * BATCH * ranks - 3), BATCH),
    )
    losses = []
    for _ in range(EPOCHS):
        model.train()
        for inputs, labels in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean"))
    accelerator.save_state(os.path.join(folder, "state"))
    who = gather_object([accelerator.process_index])
    torch.save(
        {
            "backend": dist.get_backend(),
            "parameters": nn.utils.parameters_to_vector(model.parameters()).detach(),
            "losses": torch.stack(losses),
            "validation": evaluate(accelerator, model, test),
            "who": torch.tensor(who),
        },
        os.path.join(folder, f"rank{accelerator.process_index}.pt"),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
