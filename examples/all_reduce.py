"""The sum of one tensor per rank, and the path that it took.

torchrun --nproc-per-node 4 examples/all_reduce.py
"""

import torch
import torch.distributed as dist

import smfar

dist.init_process_group("smfar")
device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
tensor = smfar.empty(1 << 20, device=device)  # in the window: no staging
dist.all_reduce(tensor.fill_(dist.get_rank() + 1))
print(f"rank {dist.get_rank()}: {tensor[0].item()}; {smfar.explain(tensor)}")
dist.destroy_process_group()
