"""Real PyTorch programs find each other by the variables that `frameworks/pytorch.py` gives them, as under torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import listening
import pytest
import waiting
from parts import need_root
from placing import EXAMPLES, LIMIT, Place, Program, Start, formed

import trainmaster
from trainmaster.spark.reservation import ip_address

TRAIN = [sys.executable, EXAMPLES / "digits" / "train.py"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TOLD = "import json, os, sys; print(json.dumps(dict(os.environ)))"

# What torchrun sets for its own sake: its store at MASTER_PORT, its error files, its signals.
TORCHRUN_ALONE = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}


def result(directory: Path) -> float:
    return float(json.loads((directory / "model" / "result.json").read_text())["accuracy"])


@pytest.mark.full
def test_the_example_learns_alone_and_under_torchrun(digits: Path, start: Start, tmp_path: Path) -> None:
    for name, command in {
        "alone": TRAIN,
        "torchrun": [*TORCHRUN, "--standalone", "--nproc-per-node=2", TRAIN[1]],
    }.items():
        place = tmp_path / name
        place.mkdir()
        (place / "data").symlink_to(digits)
        said = start(command, place).succeed()
        assert result(place) >= 0.95, said


@pytest.mark.full
def test_tasks_with_unequal_parts_learn_one_model(
    digits: Path, parts: list[Path], place: Place, tmp_path: Path
) -> None:
    formation = formed("worker:0", "worker:1")
    programs = []
    for task, part in zip(("worker:0", "worker:1"), parts, strict=True):
        env = {"TRAINMASTER_INPUT_TRAIN": str(part), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
        programs += place("pytorch", formation, task, TRAIN, env, tmp_path / task.replace(":", "-"))
    said = [program.succeed() for program in programs]
    assert "rank 0 of 2: 1137 rows" in said[0]
    assert "rank 1 of 2: 300 rows" in said[1]
    assert result(tmp_path / "worker-0") >= 0.95, said
    assert not (tmp_path / "worker-1" / "model").exists()
    assert "reporter progress:1.0000" in said[1]


def test_copies_in_one_container_share_its_part(digits: Path, place: Place, tmp_path: Path) -> None:
    env = {"TRAINMASTER_INPUT_TRAIN": str(digits / "train"), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
    command = [*TRAIN, "--epochs", "1"]
    programs = place("pytorch", formed("worker:0", copies=2), "worker:0", command, env, tmp_path / "w")
    said = [program.succeed() for program in programs]
    assert "rank 0 of 2: 719 rows" in said[0]
    assert "rank 1 of 2: 718 rows" in said[1]


@pytest.mark.full
def test_a_killed_group_goes_on_from_its_checkpoint_in_the_next_generation(
    digits: Path, parts: list[Path], place: Place, tmp_path: Path
) -> None:
    """Of two tasks one is killed; the other is stopped, as the master would. The next generation has other ports."""
    tasks = ("worker:0", "worker:1")

    def begin(generation: int, epochs: int) -> list[Program]:
        formation = formed(*tasks, generation=generation)
        programs = []
        for task, part in zip(tasks, parts, strict=True):
            env = {"TRAINMASTER_INPUT_TRAIN": str(part), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
            command = [*TRAIN, "--epochs", str(epochs)]
            programs += place("pytorch", formation, task, command, env, tmp_path / task.replace(":", "-"))
        return programs

    first = begin(1, 100_000)
    kept = tmp_path / "worker-0" / "ckpt"
    waiting.until(lambda: len(list(kept.glob("epoch-*.pt"))) > 1, limit=LIMIT, what=lambda: first[0].text)
    first[1].stop()
    first[0].stop()
    done = max(int(path.stem.split("-")[1]) for path in kept.glob("epoch-*.pt"))
    said = [program.succeed() for program in begin(2, done + 2)]
    for text in said:  # also where the task itself had kept none
        assert f"going on after epoch {done}" in text
    assert f"epoch {done + 1}:" in said[0]
    assert "epoch 1:" not in said[0]


HELD = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("pid", os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
dist.barrier()
"""


def test_other_hosts_reach_no_port_of_a_job_on_this_machine_but_that_of_the_store(home, tmp_path: Path) -> None:
    """gloo would take the address that the host's name has, which is often one that others reach."""
    need_root()
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', ip_address(), sys.executable, "-c", HELD]
    worker = {"command": named, "replicas": 2, "workdir": "share"}
    run = trainmaster.submit(
        trainmaster.Job(name="held", framework="pytorch", roles={"worker": worker}), directory=tmp_path
    )

    def pids() -> list[int]:
        lines = [line for rank in range(2) for line in run.logs(f"worker:{rank}")]
        return [int(line.split()[1]) for line in lines if line.startswith("pid ")]

    waiting.until(lambda: len(pids()) == 2, limit=LIMIT, what=lambda: str([*run.logs()]))
    at = [sorted({place for place, _ in listening.places(pid)}) for pid in pids()]
    (tmp_path / "go").touch()
    run.wait()
    assert at == [["127.0.0.1", "all addresses"], ["127.0.0.1"]]


def test_a_process_is_told_what_torchrun_tells(place: Place, start: Start, tmp_path: Path) -> None:
    """The same names and values, but for where the store is and what torchrun needs for itself."""
    script = tmp_path / "told.py"
    script.write_text(f"{TOLD.replace('print', 'told = ')}\nopen('told-' + os.environ['RANK'], 'w').write(told)")
    command = [*TORCHRUN, "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    start(
        [*command, "--rdzv-id=digits-abc234", "--role=worker", "--max-restarts=0", script], tmp_path / "theirs"
    ).succeed()
    formation = formed("worker:0", copies=2)
    for program in place("pytorch", formation, "worker:0", [sys.executable, script], {}, tmp_path / "ours"):
        program.succeed()
    plain = set(json.loads(start([sys.executable, "-c", TOLD], tmp_path).succeed()))
    for rank in "01":
        theirs = json.loads((tmp_path / "theirs" / f"told-{rank}").read_text())
        ours = json.loads((tmp_path / "ours" / f"told-{rank}").read_text())
        names = set(theirs) - plain
        assert names - set(ours) == TORCHRUN_ALONE
        same = names - TORCHRUN_ALONE - {"MASTER_ADDR", "MASTER_PORT"}
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


MEET = """
import os
import torch, torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=os.environ[os.environ["WAY"]], rank=rank, world_size=world)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["ENVIRONMENT", pytest.param("INIT_METHOD", marks=pytest.mark.full)])
def test_processes_meet_on_version_6_by_either_way(way: str, place: Place, tmp_path: Path) -> None:
    formation, env = formed("worker:0", "worker:1", address="::1"), {"WAY": way, "ENVIRONMENT": "env://"}
    programs = []
    for task in ("worker:0", "worker:1"):
        programs += place("pytorch", formation, task, [sys.executable, "-c", MEET], env, tmp_path / task[-1])
    for program in programs:
        assert program.succeed().count("total 3") == 1
