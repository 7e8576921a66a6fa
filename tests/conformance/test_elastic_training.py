"""PyTorch programs that go on in the same processes while members of their role come and go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import defaultdict

import psutil
import pytest
from conformance.engines import Engine, Submitted, python, role

TRAIN = """
    import hashlib, os, time, torch
    from trainmaster.runtime import task, torch_data
    from trainmaster.runtime.elastic.torch_training import Training

    torch.manual_seed(task().index)
    width = 32
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    training = Training(model=model, optimizer=torch.optim.Adam(model.parameters()))
    bits = lambda line: torch.tensor([float(int(line) >> bit & 1) for bit in range(16)])
    for x in training.batches(torch_data.loader("train", 8, transform=bits)):
        before = training.steps
        with training.step():
            time.sleep(0 if os.path.exists(GO) else 0.45)
            (model(torch.cat([x, x])) - x.sum()).square().mean().backward()
        if training.steps == before:
            print("again", flush=True)
            continue
        state = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
        print(training.steps, training.size, os.getpid(), hashlib.sha256(state).hexdigest(), flush=True)
    print("end", training.steps, flush=True)
"""


class Run:
    """A job of three members whose programs train until there is a file `go`, and then to the end of their records."""

    def __init__(self, engine: Engine, files: int = 1500, program: str = TRAIN) -> None:
        self.engine = engine
        for file in range(files):  # a shard each, so that all members have some
            engine.put(f"data/{file}.txt", "".join(f"{10 * file + number}\n" for number in range(10)))
        command = python(program.replace("GO", repr(f"{engine.folder}/go")))
        worker = role(
            command, {"min": 2, "max": 3}, restart={"scope": "task", "limit": 5}, threads=1,
            resources={"cores": 0.1, "memory": "1GiB"},
        )  # fmt: skip
        inputs = {"train": {"url": engine.place("data"), "as": "shards"}}
        self.job: Submitted = engine.submit({"worker": worker}, framework="pytorch", inputs=inputs)

    def steps(self, index: int, attempt: int | None = None) -> list[list[str]]:
        """The completed steps of a task: number, members, process, digest of its state."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in self.job.lines(f"worker:{index}", attempt)]
            return [line for line in lines if len(line) == 4]
        return []

    def until_size(self, size: int, *indexes: int, beyond: int = 0) -> None:
        """Wait until these tasks have completed a step, beyond this one, in a round of this size."""

        def trains() -> bool:
            newest = [steps[-1] for index in indexes if (steps := self.steps(index))]
            return len(newest) == len(indexes) and all(int(one[0]) > beyond and int(one[1]) == size for one in newest)

        self.job.until_status(f"steps of {size} members", lambda status: trains(), 240)

    def finish(self) -> None:
        """All members are equal after each step, steps follow each other, and each record is counted once."""
        self.engine.write("go", "")
        self.job.succeeded()
        digests = defaultdict(set)
        for task in self.job.status()["tasks"]:
            for attempt in range(1, task["attempt"] + 1):
                steps = self.steps(int(task["task"].split(":")[1]), attempt)
                numbers = [int(step[0]) for step in steps]
                assert numbers == sorted(set(numbers)), "no step is completed twice"
                for number, _, _, digest in steps:
                    digests[int(number)].add(digest)
        assert all(len(states) == 1 for states in digests.values()), "members differ"
        assert sorted(digests) == [*range(1, max(digests) + 1)], "a step is missing"
        audited = json.loads(self.engine.tm("audit", self.job.id, "--json").stdout)
        assert audited["ok"], audited


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_survivors_go_on_in_the_same_processes_and_newcomers_come_in(engine: Engine) -> None:
    run = Run(engine)
    run.until_size(3, 0, 1, 2)
    before = [run.steps(index)[-1] for index in range(3)]
    os.kill(int(before[1][2]), signal.SIGKILL)
    run.job.attempt(2, "worker:1")
    run.until_size(3, 0, 1, 2, beyond=int(before[0][0]) + 1)
    run.job.run.scale("worker", 2)
    run.until_size(2, 0, 1)
    run.job.run.scale("worker", 3)
    run.until_size(3, 0, 1, 2, beyond=int(run.steps(0)[-1][0]))
    run.finish()
    for index in (0, 2):
        assert run.steps(index, 1)[0][2] == before[index][2], "the same process"
    assert {step[2] for step in run.steps(0)} == {before[0][2]}
    again = run.job.lines("worker:0").count("again")
    assert again <= 2, f"{again} steps were done again after a death and a member that was stopped"
    assert any(int(step[1]) == 2 for step in run.steps(2, 1)), "the survivors went on without the one that was killed"


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_what_the_state_of_members_that_are_all_lost_had_seen_is_trained_again(engine: Engine) -> None:
    """A file of ten records is a batch, and the state counts the batches that are in it."""
    program = TRAIN.replace('loader("train", 8', 'loader("train", 10').replace(
        '"end", training.steps', '"end", training.batches_done'
    )
    run = Run(engine, 300, program)
    run.until_size(3, 0, 1, 2)
    run.until_size(3, 0, 1, 2, beyond=int(run.steps(0)[-1][0]) + 4)
    for process in {int(run.steps(index)[-1][2]) for index in range(3)}:
        os.kill(process, signal.SIGKILL)
    for index in range(3):
        run.job.attempt(2, f"worker:{index}")
    engine.write("go", "")
    run.job.succeeded()
    ends = {line for index in range(3) for line in run.job.lines(f"worker:{index}") if line.startswith("end")}
    assert len(ends) == 1
    assert int(ends.pop().split()[1]) >= 300
    (audited,) = json.loads(engine.tm("audit", run.job.id, "--json").stdout)["inputs"]
    assert not audited["faults"]
    assert audited["taken_back"] >= 4
    assert audited["counted"] == 300


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_a_newcomer_whose_model_differs_ends_alone(engine: Engine) -> None:
    run = Run(
        engine, program=TRAIN.replace("width = 32", "width = 33 if (task().index, task().attempt) == (1, 2) else 32")
    )
    run.until_size(3, 0, 1, 2)
    before = [run.steps(index)[-1] for index in range(3)]
    os.kill(int(before[1][2]), signal.SIGKILL)
    run.job.attempt(3, "worker:1")
    run.until_size(3, 0, 1, 2, beyond=int(before[0][0]) + 1)
    run.finish()
    for index in (0, 2):
        assert {step[2] for step in run.steps(index)} == {before[index][2]}, "the same process"
    printed = "\n".join(run.job.lines("worker:1", 2))
    assert "ValueError: members differ in what they train: parameter 0" in printed, printed
    assert "is float32 (32, 16) at worker:0 and worker:2, float32 (33, 16) at worker:1" in printed, printed


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_a_member_that_is_away_when_the_others_finish_ends_with_nothing(engine: Engine) -> None:
    run = Run(engine, 300)
    run.until_size(3, 0, 1, 2)
    agent = psutil.Process(int(run.steps(1)[-1][2])).parent()
    assert agent is not None
    agent.suspend()
    try:
        run.until_size(2, 0, 2)
        engine.write("go", "")
        run.job.until_status("two that have finished", lambda status: {
            task["task"] for task in status["tasks"] if task["phase"] in ("exited", "uploaded", "committing", "succeeded")
        } == {"worker:0", "worker:2"}, 240)  # fmt: skip
    finally:
        agent.resume()
    run.job.succeeded()
    assert not any(line.startswith("end") for line in run.job.lines("worker:1")), "its state is not the last one"
    assert any(line.startswith("end") for line in run.job.lines("worker:0"))


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_the_rest_goes_on_without_a_member_whose_agent_is_silent(engine: Engine) -> None:
    run = Run(engine, 1000)
    run.until_size(3, 0, 1, 2)
    before = [run.steps(index)[-1] for index in range(3)]
    agent = psutil.Process(int(before[1][2])).parent()
    assert agent is not None
    agent.suspend()
    try:
        run.until_size(2, 0, 2, beyond=int(before[0][0]))
    finally:
        agent.resume()
    run.until_size(3, 0, 1, 2, beyond=int(run.steps(0)[-1][0]))
    run.finish()
    for index in range(3):
        assert {step[2] for step in run.steps(index)} == {before[index][2]}, "the same process"
