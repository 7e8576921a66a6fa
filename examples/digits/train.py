"""Train a small network on handwritten digits, data-parallel with PyTorch's DistributedDataParallel.

    python train.py                                  # alone
    torchrun --nproc-per-node 2 train.py             # by torchrun
    tm run job.yaml                                  # by Trainmaster, here or on a cluster

It is an ordinary program: it knows of no launcher beyond the variables of torch.distributed and the paths of its
data. Every few seconds it keeps a checkpoint; started again, it goes on after the newest one.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
KEEP_EVERY = 3.0  # s; an epoch takes a fraction of one, and whoever stores a checkpoint waits until it is still


def read(name):
    """Pixels and labels of an input: all files of its directory."""
    place = Path(os.environ.get(f"TRAINMASTER_INPUT_{name.upper()}", f"data/{name}"))
    rows = [np.loadtxt(path, delimiter=",", ndmin=2) for path in sorted(place.glob("*.csv"))]
    table = torch.from_numpy(np.concatenate(rows or [np.zeros((0, 65))])).float()
    return table[:, 1:] / 16, table[:, 0].long()


def part(pixels, labels):
    """The rows of this process. Under Trainmaster the files are this task's already, to be shared by its copies
    alone."""
    if "TRAINMASTER_INPUT_TRAIN" in os.environ:
        mine = slice(int(os.environ["LOCAL_RANK"]), None, int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        mine = slice(RANK, None, WORLD)
    return pixels[mine], labels[mine]


def newest(directory):
    """The epochs done and the state after them, by the newest checkpoint."""
    paths = sorted(directory.glob("epoch-*.pt"))
    if not paths:
        return 0, None
    return int(paths[-1].stem.split("-")[1]), torch.load(paths[-1], weights_only=True)


def keep(directory, epoch, state):
    """A checkpoint is whole or not there: it is written beside its name and renamed."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "unfinished"
    torch.save(state, unfinished)
    unfinished.rename(directory / f"epoch-{epoch:04}.pt")
    for old in sorted(directory.glob("epoch-*.pt"))[:-2]:
        old.unlink()


def train(model, optimizer, pixels, labels, epoch, batch):
    """One epoch. Workers have unequal numbers of rows: who is through early takes part in the others' steps
    (`join`)."""
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(epoch))
    model.train()
    with model.join():
        for rows in order.split(batch) if len(order) else ():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels[rows]), labels[rows]).backward()
            optimizer.step()


def accuracy(network, pixels, labels):
    network.eval()
    with torch.no_grad():
        return (network(pixels).argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="rows of a step of one process")
    parser.add_argument("--checkpoints", type=Path, default=Path("ckpt"))
    options = parser.parse_args()

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9, weight_decay=1e-4)

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # alone, nobody has set it
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    found = list(newest(options.checkpoints))
    dist.broadcast_object_list(found)  # all go on from where rank 0 does, whatever each of them finds
    done, state = found
    if state is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {RANK}: going on after epoch {done}", flush=True)
    model = DistributedDataParallel(network)
    mine, held = part(*read("train")), read("test")
    if not len(held[0]):
        sys.exit("there are no digits to train on; make them: python data.py")
    print(f"rank {RANK} of {WORLD}: {len(mine[0])} rows to train on", flush=True)
    kept = time.monotonic()
    for epoch in range(done, options.epochs):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * epoch / options.epochs))
        train(model, optimizer, *mine, epoch, options.batch)
        if RANK == 0:
            if time.monotonic() - kept > KEEP_EVERY or epoch + 1 == options.epochs:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                keep(options.checkpoints, epoch + 1, state)
                kept = time.monotonic()
            print(f"epoch {epoch + 1}: {accuracy(network, *held):.4f} of the held-out digits read rightly", flush=True)
        print(f"reporter progress:{(epoch + 1) / options.epochs:.4f}", file=sys.stderr, flush=True)
    if RANK == 0:
        MODEL.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), MODEL / "model.pt")
        (MODEL / "result.json").write_text(
            json.dumps({"accuracy": accuracy(network, *held), "epochs": options.epochs}) + "\n"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
