"""What a rank's process holds, to be compared with what it held before."""

import os
import time

import torch
import torch.distributed as dist

SETTLE_S = 5.0  # threads let go of what they hold when they get to it
MEMORY_SLACK = 64 << 20
SPACE_SLACK = 256 << 20  # arenas and stacks that the C library keeps


class Holdings:
    """Collective to take: on a shared GPU the others' memory counts, too."""

    def __init__(self, device):
        self.device = device
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        dist.barrier()
        self.memory = in_use(device)
        self.descriptors, self.space = descriptors(), address_space()

    def expect_as_before(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        dist.barrier()
        limit = time.monotonic() + SETTLE_S
        while descriptors() > self.descriptors and time.monotonic() < limit:
            time.sleep(0.01)
        assert descriptors() <= self.descriptors, (descriptors(), self.descriptors)
        assert in_use(self.device) < self.memory + MEMORY_SLACK, "device memory"
        assert address_space() < self.space + SPACE_SLACK, (address_space(), self.space)


def in_use(device):
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def address_space():
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmSize:"))
    return int(line.split()[1]) << 10
