"""Trains, evaluates and predicts with PyTorch's model files of `zoo`, in one process: `zoo_torch.py DIRECTORY`. Prints facts as JSON."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ZOO = str(Path(__file__).parent / "zoo")
directory = Path(sys.argv[1])
facts: dict[str, Any] = {"directory": str(directory)}
MODEL = "models.torch_iris.custom_model"


def run(name: str, task: str, model: str = MODEL, **flags: Any) -> None:
    """Run the program with these flags, and note its exit status and what it printed."""
    from trainmaster.zoo.__main__ import main

    flags = {"model_zoo": ZOO, "model_def": model, "minibatch_size": 32, **flags}
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([task, *(part for key, value in flags.items() for part in (f"--{key}", str(value)))])
    facts[name] = {"status": status, "out": out.getvalue().splitlines(), "err": err.getvalue().splitlines()}


def write_data() -> Path:
    flowers = [(number % 7, number % 5, number % 3, number % 2, number % 3) for number in range(150)]
    path = directory / "iris.csv"
    path.write_text("\n".join(["a,b,c,d,class", *(",".join(map(str, flower)) for flower in flowers)]) + "\n")
    return path


def trained(csv: Path) -> None:
    """Train, and compare what is exported with what was predicted."""
    model, checkpoints = directory / "model", directory / "checkpoints"
    run(
        "train", "train", training_data=csv, validation_data=csv, num_epochs=5, output=model, checkpoint_dir=checkpoints
    )
    run("come back", "train", training_data=csv, num_epochs=5, output=directory / "back", checkpoint_dir=checkpoints)
    run("from checkpoint", "evaluate", validation_data=csv, checkpoint_dir_for_init=checkpoints)
    run("from export", "evaluate", validation_data=csv, checkpoint_dir_for_init=model)
    cut = directory / "cut.pt"
    cut.write_bytes((model / "model.pt").read_bytes()[:1000])
    run("cut short", "evaluate", validation_data=csv, checkpoint_dir_for_init=cut)
    run("predict", "predict", prediction_data=csv, checkpoint_dir_for_init=model, output=directory / "predictions")
    from models.torch_iris import Flowers

    rows = [json.loads(line) for line in (directory / "predictions" / "shard-00000000.jsonl").read_text().splitlines()]
    predicted = torch.tensor([row["logits"] for row in rows])
    features = torch.tensor(
        [[number % 7, number % 5, number % 3, number % 2] for number in range(150)], dtype=torch.float32
    )
    plain, program = Flowers(), torch.export.load(model / "model.pt2").module()
    plain.load_state_dict(torch.load(model / "model.pt", weights_only=True))
    with torch.no_grad():
        facts["loaded"] = {
            "state dict": float((plain(features)["logits"] - predicted).abs().max()),
            "program": float((program(features)["logits"] - predicted).abs().max()),
            "other batch": list(program(features[:7])["logits"].shape),
            "come back": list(
                torch.export.load(directory / "back" / "model.pt2").module()(features[:7])["logits"].shape
            ),
        }


def ids() -> None:
    """Ids that an embedding has no row for: PyTorch's own, and a table."""
    model = "clicks.torch_clicks.custom_model"
    for kind, record, wrong in (("moved", 0, 99), ("moved", 150, 99), ("tables", 150, 99)):
        lines = [f"{wrong if number == record else number % 13},14,30,1" for number in range(160)]
        csv = directory / "ids.csv"
        csv.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
        name = f"id {wrong} of record {record}, {kind}"
        run(name, "train", model, training_data=csv, minibatch_size=40, model_params=f"kind='{kind}'")


def killed(csv: Path) -> None:
    """Kill a training after its step 7, once a checkpoint is stored; compare the next one's model with that of one that was not killed."""
    files = directory / "lines"
    files.mkdir()
    for number in range(8):
        (files / str(number)).write_text("".join(f"{number * 4 + line}\n" for line in range(4)))
    flags = {"model_zoo": ZOO, "model_def": "models.torch_lines.custom_model", "minibatch_size": 4, "training_data": files,
             "checkpoint_steps": 2, "feed": "ordered_feed"}  # fmt: skip
    weights = []
    for name, dies in (("killed", "0 7"), ("again", ""), ("whole", "")):
        checkpoints = directory / ("whole" if name == "whole" else "killed")
        environ = {**os.environ, "DIES": dies or "-1 0", "DIE": str(checkpoints / "state-*.json")}
        arguments = [f"--{key}={value}" for key, value in {**flags, "checkpoint_dir": checkpoints}.items()]
        done = subprocess.run(
            [sys.executable, "-m", "trainmaster.zoo", "train", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        facts[name] = {"status": done.returncode, "err": done.stderr}
        weights.append([line for line in done.stdout.splitlines() if line.startswith("weights")])
        if name == "again":
            facts[name] = [line for line in done.stdout.splitlines() if not line.startswith("weights")]
    facts["same weights"] = weights[1] == weights[2] != []


if __name__ == "__main__":
    data = write_data()
    trained(data)
    run("wrong loss", "train", training_data=data, loss="wrong_loss")
    for name, place in (("no folder", data), ("below a file", data / "model"), ("no file system", "/proc/model")):
        run(name, "train", training_data=data, output=place, checkpoint_dir=directory / "never")
    run("a url", "train", training_data=data, output="s3://bucket/model")
    run("no predictions", "predict", prediction_data=data, checkpoint_dir_for_init=directory / "model", output=data)
    run("optimizer", "train", training_data=data, optimizer="plain_optimizer")
    for name in ("nan", "steep"):
        flags = {"num_epochs": 3, "loss": f"{name}_loss", "checkpoint_dir": directory / name, "checkpoint_steps": 2}
        run(name, "train", training_data=data, **flags)
    ids()
    killed(data)
    print(json.dumps(facts))
