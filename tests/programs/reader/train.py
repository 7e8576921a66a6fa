"""Stand for the program of somebody who reads the documents: quick, without a framework, and in the shape of examples/digits/train.py."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, lambda *_: print("asked by a signal", flush=True))
    print(f"rank {RANK} of {WORLD}", flush=True)
    done = Path("ckpt/epoch")
    done.parent.mkdir(exist_ok=True)
    for epoch in range(int(done.read_text()) if done.exists() else 0, options.epochs):
        time.sleep(0.1)
        done.with_suffix(f".{RANK}").write_text(f"{epoch + 1}")
        done.with_suffix(f".{RANK}").rename(done)
        print(f"epoch {epoch + 1}", flush=True)
        print(f"reporter progress:{(epoch + 1) / options.epochs:.4f}", file=sys.stderr, flush=True)
    model = Path(os.environ.get("TRAINMASTER_OUTPUT_MODEL", "model"))
    model.mkdir(parents=True, exist_ok=True)
    (model / f"weights-{RANK}").write_text("0.5\n")


if __name__ == "__main__":
    main()
