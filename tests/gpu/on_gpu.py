"""Runs functions of tests/python, which know of no device, on tensors of a GPU."""

import importlib

import data
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
    here = device() if callable(device) else device
    data.places.append(here)
    try:
        with MadeOn(here):
            function(*arguments)
    finally:
        data.places.pop()
    return True


def train(device, module, name, run=None, arguments=()):
    """The same of functions that use data.home(), and what they return."""
    functions = importlib.import_module(f"python.{module}")
    data.places.append(device())
    try:
        given = arguments if run is None else (getattr(functions, run), *arguments)
        return getattr(functions, name)(*given)
    finally:
        data.places.pop()
