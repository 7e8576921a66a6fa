"""Keras programs that go on while members of their job die and come: by `fit`, by a loop of their own, on shards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
from conformance.engines import Engine, Submitted
from placing import EXAMPLES
from waiting import until

import trainmaster
from trainmaster.core.errors import TrainmasterError

pytestmark = [pytest.mark.needs("frameworks"), pytest.mark.needs("local-master")]
LIMIT = 300.0  # s; three imports of TensorFlow on a machine with other work

# It trains until `go` is there, each member for itself, and tells of each step and at the end of its weights.
PROGRAM = r"""
import hashlib, json, os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras
import numpy as np
from trainmaster.runtime import task
from trainmaster.runtime.elastic import keras_training as elastic

def tell(**facts):
    print(json.dumps(facts), flush=True)

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        training = elastic_callback.training
        tell(step=training.steps, size=training.size, pid=os.getpid())
        time.sleep(0.02)
        if os.path.exists("go") and training.size == 3:
            self.model.stop_training = True

draw = np.random.default_rng(task().index)
keras.utils.set_random_seed(task().index)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
elastic_callback = elastic.Callback()
model.fit(draw.normal(size=(1000, 16)).astype("f4"), draw.integers(0, 4, 1000), batch_size=10, epochs=10**6, verbose=0,
          callbacks=[elastic_callback, Tell()])
weights = b"".join(weight.tobytes() for weight in model.get_weights())
tell(end=elastic_callback.training.steps, weights=hashlib.sha256(weights).hexdigest(), iterations=int(model.optimizer.iterations))
"""

# It sums without end in whatever round there is, as Keras programs do, but without Keras, whose import takes long.
SUMS = r"""
import json, os
import numpy as np
from trainmaster.runtime.elastic import BROKEN, Rendezvous
from trainmaster.runtime.elastic.all_reduce import Aborted, Listener, Ring

ring = None

def heard(word, number):
    if word == BROKEN and ring is not None and ring.number == number:
        ring.abort()

rendezvous, step, is_over = Rendezvous(heard=heard), 0, False
key, address = rendezvous.key_and_address()
listener = Listener(address)
while not is_over:
    here = rendezvous.join(str(listener.port), step)
    ring = Ring(listener, key, "", here.number, here.rank, [(member.address, int(member.payload)) for member in here.members])
    if rendezvous.is_broken:
        ring.abort()
    try:
        ring.connect()
        while not is_over:
            numbers = np.ones(500_000, "f4")
            numbers[0] = os.path.exists("go")
            ring.all_reduce(numbers)
            step += 1
            is_over = numbers[0] > 0
            if step % 5 == 0:
                print(json.dumps({"step": step, "size": here.size, "pid": os.getpid(), "sum": float(numbers[-1])}), flush=True)
            if rendezvous.is_wanted:
                break
    except Aborted:
        pass
    ring.close()
"""


def lines(job: Submitted, task: str, attempt: int = 1) -> list[str]:
    try:
        return job.lines(task, attempt)
    except TrainmasterError:  # it has not begun
        return []


def facts(job: Submitted, task: str, attempt: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(job, task, attempt) if line.startswith("{") and line.endswith("}")]


def submitted(engine: Engine, program: str, backend: str = "", most: int = 3, **restart: Any) -> Submitted:
    """A job of at least two members, which restart alone."""
    engine.write("fit.py", program)
    role = {
        "command": [sys.executable, "fit.py"], "replicas": {"min": 2, "max": most}, "restart": {"scope": "task", **restart},
        "workdir": "share", "resources": {"cores": 0.05, "memory": "1GiB"}, "env": {"KERAS_BACKEND": backend}, "threads": 1,
    }  # fmt: skip
    return engine.submit({"worker": role})


def kill_a_member_while_it_trains(engine: Engine, program: str, backend: str = "") -> Submitted:
    """Three members train; one is killed, and its successor joins the others. Return the job, which has succeeded."""
    job = submitted(engine, program, backend)
    until(lambda: _all_train(job), LIMIT, what=job.said)
    victim = facts(job, "worker:1")[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: _all_train(job, attempt=2), LIMIT, what=job.said)
    engine.write("go", "")
    job.succeeded(LIMIT)
    for task in ("worker:0", "worker:2"):
        assert job.task(task)["attempt"] == 1, "nobody else began again"
        assert len({fact["pid"] for fact in facts(job, task) if "step" in fact}) == 1
    return job


def all_have_trained_alike(job: Submitted) -> None:
    ends = [facts(job, task, attempt)[-1] for task, attempt in (("worker:0", 1), ("worker:1", 2), ("worker:2", 1))]
    assert len({end["weights"] for end in ends}) == 1, ends
    assert len({(end["end"], end["iterations"]) for end in ends}) == 1, ends
    for task in ("worker:0", "worker:2"):
        steps = [fact["step"] for fact in facts(job, task) if "step" in fact]
        assert steps == [*range(1, len(steps) + 1)], "each batch is in one step, and none was done twice"


def _all_train(job: Submitted, attempt: int = 1) -> bool:
    """Tell whether the first member was one of three in its newest step, and worker:1 in one of this attempt."""
    steps = [fact for fact in facts(job, "worker:0") if "step" in fact]
    return (
        bool(steps)
        and steps[-1]["size"] == 3
        and any(fact.get("size") == 3 for fact in facts(job, "worker:1", attempt))
    )


def test_sums_go_on_where_a_member_dies_and_another_comes(engine: Engine) -> None:
    job = kill_a_member_while_it_trains(engine, SUMS)
    assert all(fact["sum"] == fact["size"] for task in ("worker:0", "worker:2") for fact in facts(job, task))


# The first member stops early and keeps the iterator, and so its leases.
STOPS = r"""
import time
import keras
from trainmaster.runtime import task
from trainmaster.runtime.elastic import keras_training as elastic

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD()
with elastic.Training(model, optimizer) as training:
    batches = training.batches("train", 10)
    for records in batches:
        optimizer.apply([keras.ops.ones(variable.shape) for variable in model.trainable_variables], model.trainable_variables)
        time.sleep(0.01)
        if task().index == 0 and training.steps >= 3:
            break
print(f"end {training.steps}", flush=True)
"""


@pytest.mark.full
def test_the_shards_of_a_member_that_stops_early_are_read_by_the_others(engine: Engine) -> None:
    for file in range(20):
        engine.put(f"data/{file}.txt", "".join(f"{number}\n" for number in range(10)))
    engine.write("stops.py", STOPS)
    role = {
        "command": [sys.executable, "stops.py"], "replicas": {"min": 2, "max": 2}, "restart": {"scope": "task"}, "workdir": "share",
        "resources": {"cores": 0.05, "memory": "1GiB"}, "env": {"KERAS_BACKEND": "torch"}, "threads": 1,
    }  # fmt: skip
    job = engine.submit({"worker": role}, inputs={"train": {"url": engine.place("data"), "as": "shards"}})
    job.succeeded(LIMIT)
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"], audit
    assert [row["records"] for row in audit["inputs"]] == [200]
    assert lines(job, "worker:0")[-1] == lines(job, "worker:1")[-1], "the same steps"


# The second member dies in the sum by which the averages of BatchNormalization are made equal: once the first one has that sum, and before
# the third one has it.
DIES_AT_THE_END = r"""
import hashlib, os, signal, socket, struct
import keras
import numpy as np
from trainmaster.runtime import task
from trainmaster.runtime.elastic import keras_training as elastic

class Withheld:
    # The connection to the third member, which gets all but the last segment.
    def __init__(self, right, left, limit):
        self.right, self.left, self.room = right, left, limit
        self.fileno, self.shutdown, self.close = right.fileno, right.shutdown, right.close

    def send(self, part):
        if self.room:
            count = self.right.send(part[: self.room])
            self.room -= count
            return count
        try:
            ahead = self.left.recv(65536, socket.MSG_PEEK)
        except BlockingIOError:
            ahead = b""
        if struct.pack("!2sQ", b"sf", 1) in ahead:  # the first member is in its next call
            os.kill(os.getpid(), signal.SIGKILL)
        raise BlockingIOError

def die_in_the_last_sum(ring):
    whole, seen = ring.all_reduce, []
    def all_reduce(array):
        if array.dtype == "f8":
            seen.append(array.size)
            if sum(seen) == 8:
                ring._right = Withheld(ring._right, ring._left, 10 + 8 * array.size)
        whole(array)
    ring.all_reduce = all_reduce

keras.utils.set_random_seed(task().index)
draw = np.random.default_rng(task().index)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(), "mse")
with elastic.Training(model) as training:
    while training.steps < 4:
        model.train_on_batch(draw.normal(size=(8, 2)), draw.normal(size=(8, 1)))
    if task().index == 1 and task().attempt == 1:
        assert (training.rank, training.size) == (1, 3)
        die_in_the_last_sum(training._ring)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print("end", training.steps, hashlib.sha256(weights).hexdigest(), flush=True)
"""


@pytest.mark.full
def test_a_death_in_the_last_sum_leaves_the_others_equal(engine: Engine) -> None:
    job = submitted(engine, DIES_AT_THE_END, "torch", limit=1)
    job.succeeded(LIMIT)
    assert job.task("worker:1")["attempt"] == 2
    ends = [[line for line in lines(job, task) if line.startswith("end")] for task in ("worker:0", "worker:2")]
    assert len(ends[0]) == 1, job.said()
    assert ends[0] == ends[1], "they have the same steps and weights"


# Each member has a layer of its own width.
DIFFERS = r"""
import keras
from trainmaster.runtime import task
from trainmaster.runtime.elastic import keras_training as elastic

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1 + task().index)])
elastic.Training(model, keras.optimizers.SGD())
"""


@pytest.mark.full
def test_members_whose_models_differ_all_say_in_what(engine: Engine) -> None:
    job = submitted(engine, DIFFERS, "torch", most=2, limit=2)
    assert job.end(LIMIT)["state"] == "failed"
    for task in ("worker:0", "worker:1"):
        printed = "\n".join(lines(job, task))
        assert "ValueError: members differ in what they train: variable 0" in printed, printed
        assert "is float32 (2, 1), trained at worker:0, float32 (2, 2), trained at worker:1" in printed


@pytest.mark.full
def test_fit_goes_on_where_a_member_dies_and_another_comes(engine: Engine) -> None:
    all_have_trained_alike(kill_a_member_while_it_trains(engine, PROGRAM, "tensorflow"))


@pytest.mark.full
def test_a_batch_of_a_member_that_was_out_of_reach_is_in_the_next_step(engine: Engine) -> None:
    job = submitted(engine, PROGRAM)
    until(lambda: _all_train(job), LIMIT, what=job.said)
    agent = psutil.Process(facts(job, "worker:1")[0]["pid"]).parent()
    assert agent is not None
    agent.suspend()
    try:
        until(lambda: facts(job, "worker:0")[-1]["size"] == 2, LIMIT, what=job.said)
    finally:
        agent.resume()
    until(lambda: facts(job, "worker:0")[-1]["size"] == 3, LIMIT, what=job.said)
    engine.write("go", "")
    job.succeeded(LIMIT)
    # At the end a member may be gone before the others' last steps, which are of two, or of one.
    first, second = (
        {fact["step"]: fact["size"] for fact in facts(job, task) if "step" in fact} for task in ("worker:0", "worker:1")
    )
    alone = [step for step, size in second.items() if step <= max(first) and first[step] != size]
    assert alone == [], "steps that the others made without it"


@pytest.mark.full
def test_fit_with_pytorch_goes_on_too(engine: Engine) -> None:
    all_have_trained_alike(kill_a_member_while_it_trains(engine, PROGRAM, "torch"))


@pytest.mark.full
@pytest.mark.parametrize("name", ["fit_keras", "train_keras"])
def test_the_examples_lose_nothing_where_a_member_is_killed(engine: Engine, name: str) -> None:
    shutil.copytree(
        EXAMPLES / "elastic", engine.folder / "elastic", ignore=shutil.ignore_patterns("out", "__pycache__")
    )
    data = engine.folder / "digits" / "data"
    subprocess.run([sys.executable, EXAMPLES / "digits" / "data.py", data], check=True, timeout=LIMIT)
    shares = ("--set", "roles.worker.resources.cores=0.1", "--set", "roles.worker.replicas=3")
    submitted = engine.tm(
        "submit", f"elastic/{name}.yaml", "--set", f"environment.path={sys.prefix}", *shares, limit=LIMIT
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    job = Submitted(trainmaster.attach({"fit_keras": "elastic-fit", "train_keras": "elastic-keras"}[name]))
    engine.jobs.append(job)
    until(lambda: any(line.startswith(("Epoch 2/", "step ")) for line in lines(job, "worker:1")), LIMIT, what=job.said)
    job.run.kill_task("worker:1")
    job.succeeded(LIMIT)
    results = [json.loads(path.read_text()) for path in (engine.folder / "elastic" / "out").rglob("result.json")]
    assert len(results) >= 2, "one that came too late has none"
    assert all(result == results[0] for result in results)
    assert results[0]["accuracy"] >= 0.9
    assert [job.task(task)["attempt"] for task in ("worker:0", "worker:2")] == [1, 1]
    if name == "train_keras":
        audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
        assert audit["ok"], audit
        assert [row["records"] for row in audit["inputs"]] == [15 * 1437]
