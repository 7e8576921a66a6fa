"""Stand in for TonY's PyTorch example: a group by INIT_METHOD, RANK and WORLD."""

import os

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
dist.init_process_group("gloo", init_method=os.environ["INIT_METHOD"], rank=rank, world_size=world)
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item())
assert total.item() == world
