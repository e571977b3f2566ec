"""Runs functions of tests/python, which know of no device, on tensors of a GPU."""

import importlib

import torch
from torch.overrides import TorchFunctionMode

FACTORIES = {torch.arange, torch.empty, torch.full, torch.ones, torch.rand, torch.randint}
FACTORIES |= {torch.randn, torch.tensor, torch.zeros}


class MadeOn(TorchFunctionMode):
    """Moves there what is made without naming a device; made on the CPU, seeds give the same."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function in FACTORIES and "device" not in (kwargs or {}):
            return made.to(self.device)
        return made


def call(device, module, name, arguments):
    """module.name(*arguments), module of tests/python, on `device` or what it gives when called."""
    function = getattr(importlib.import_module(f"python.{module}"), name)
    with MadeOn(device() if callable(device) else device):
        function(*arguments)
    return True
