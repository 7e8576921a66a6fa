"""Train a small network on handwritten digits, on records leased as shards, while workers come and go.

    python ../digits/data.py       # once
    python train_torch.py          # alone
    tm run job.yaml                # two to four workers; tm scale, tm kill and tm chaos change them meanwhile

Workers that stay keep their processes: after a peer's death they form the next round, and add up the interrupted step again. A newcomer
takes the state of the others between two steps. No checkpoint is needed as long as one of them is left.
"""

import json
import os
from pathlib import Path

import torch
from torch import nn

from trainmaster.runtime import torch_data
from trainmaster.runtime.elastic.torch_training import Training

MODEL = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
DATA = Path(__file__).parent.parent / "digits" / "data"
TEST = Path(os.environ.get("TRAINMASTER_INPUT_TEST", DATA / "test"))


def parsed(line):
    """The pixels and the label of a record."""
    label, *pixels = map(float, line.split(","))
    return torch.tensor(pixels) / 16, int(label)


def main():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    MODEL.mkdir(parents=True, exist_ok=True)  # who comes when the others have finished ends in the next line
    training = Training(model=model, optimizer=optimizer)
    loader = torch_data.loader(
        "train", 32, transform=parsed, shuffle=500, default=str(DATA / "train" / "*.csv"), epochs=15
    )
    for pixels, labels in training.batches(loader):
        with training.step():
            nn.functional.cross_entropy(model(pixels), labels).backward()
    paths = sorted(TEST.glob("*.csv")) if TEST.is_dir() else [TEST]
    held = [parsed(line) for path in paths for line in path.read_text().splitlines()]
    with torch.no_grad():
        guesses = model(torch.stack([pixels for pixels, _ in held])).argmax(1)
    accuracy = float((guesses == torch.tensor([label for _, label in held])).float().mean())
    print(f"{training.steps} steps; {accuracy:.4f} of the held-out digits read rightly", flush=True)
    torch.save(model.state_dict(), MODEL / "model.pt")  # all members have the same weights
    (MODEL / "result.json").write_text(json.dumps({"accuracy": accuracy, "steps": training.steps}) + "\n")


if __name__ == "__main__":
    main()
