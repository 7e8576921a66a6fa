"""Make jobs and worlds to play: many small ones out of a seed, and the large ones that the figures are taken from."""

from __future__ import annotations

import math
import random
from typing import Any

from attrs import evolve

from trainmaster.core.machine.stimuli import KillTaskRequested, ScaleRequested, Stimulus, UserActed
from trainmaster.core.waits import BARRIER, LOCK, RENDEZVOUS
from trainmaster.simulation.agent import Habits
from trainmaster.simulation.faults import ALL, FATAL, CutNetwork, KillAgent, LoseNode, Preempt
from trainmaster.simulation.play import Scene
from trainmaster.simulation.steps import Steps

HOUR, DAY = 3600.0, 86400.0
# Legal names of roles that could be taken for something else.
STRANGE_NAMES = ("group", "role", "task", "master", "job", "0", "group-0", "worker.0", "A_b", "x" * 63)


def random_scene(seed: int, plant: str = "") -> Scene:
    """Return a small job of any kind, in a world with any of the faults."""
    if random.Random(f"lasting 29 {seed}").random() < 0.1:
        return _lasting_scene(seed, plant)
    if random.Random(f"training 32 {seed}").random() < 0.05:
        return _training_scene(seed, plant)
    return _mixed_scene(seed, plant)


def _mixed_scene(seed: int, plant: str) -> Scene:
    rng = random.Random(f"scene {seed}")
    scope = rng.choice(("group", "group", "task", "never"))
    shards = rng.choice((0, 0, 40)) if scope != "never" else 0
    job: dict[str, Any] = {
        "name": "sim",
        "roles": _roles(rng, scope),
        "gang": rng.random() < (0.9 if scope == "group" else 0.5),
        "timeouts": {
            "job": rng.choice(("none", "none", "none", "10m", "2h")),
            "start": "10m",
            "storage": rng.choice(("30s", "10m")),
        },
    }
    if rng.random() < 0.6:
        job["outputs"] = {"model": {"url": "memory://out", "from": rng.choice(("worker", "worker:0"))}}
    if rng.random() < 0.2:
        job["completion"] = {"failures": 0.5} if scope != "group" else {"first": "worker"}
    if "outputs" in job and random.Random(f"saves 30 {seed}").random() < 0.15:  # drawn apart from all else
        job["saves"] = {"every": "10s"}
    _make_odd(seed, job)
    if "ps" in job["roles"] and scope == "group" and random.Random(f"servers in the group 96 {seed}").random() < 0.4:
        job["roles"]["ps"]["restart"]["scope"] = "group"
    saves = 0.0
    if scope == "group" and rng.random() < 0.5:
        job["checkpoint"] = {"path": "ckpt", "url": "memory://ckpt"}
        saves = rng.choice((5.0, 20.0))
    if shards:
        job["inputs"] = {"train": {"url": "memory://data", "as": "shards", "to": ["worker"]}}
    wishes = _make_elastic(seed, job)
    poisonous = _make_poisonous(seed, job, shards)
    paced = _make_paced(seed, job)
    meets = _make_meeting(seed, job)
    job = _with_strange_names(seed, job)
    habits = Habits(
        runs=(5.0, rng.choice((30.0, 300.0))), fails=rng.choice((0.0, 0.0, 0.1, 0.6)), hangs=rng.choice((0.0, 0.0, 0.0, 0.2)),
        ignores_term=rng.random() * 0.3, progresses=rng.random() < 0.7, staging=(0.0, rng.choice((0.1, 20.0))),
        misses=rng.choice((0.0, 0.0, 0.1)), saves_every=saves, **_rare_habits(seed), **poisonous,
    )  # fmt: skip
    habits = evolve(habits, **{**meets, **paced, **_make_warm(seed, job)})
    if _stages_slowly(seed):
        job["timeouts"]["start"] = "20s"
        habits = evolve(habits, staging=(0.0, 30.0), tells_staging=12.0)
    if saves and random.Random(f"full disk 28 {seed}").random() < 0.3:
        habits = evolve(habits, full_disk=random.Random(f"how full {seed}").choice((0.2, 0.9)))
    if random.Random(f"slow commits 3 {seed}").random() < 0.1:
        habits = evolve(habits, commits=600.0)
    if "outputs" in job and random.Random(f"required {seed}").random() < 0.3:
        job["outputs"]["model"]["required"] = random.Random(f"how required {seed}").choice(("any", "any", "none"))
        habits = evolve(habits, idle_writers=random.Random(f"idle writers {seed}").choice((0.5, 1.0)))
    faults = rng.sample(ALL, rng.randint(1, len(ALL))) + (list(FATAL) if rng.random() < 0.05 else [])
    return Scene(
        job=job, habits=habits, faults=faults, fault_every=rng.choice((3.0, 20.0, 60.0)), stormy=rng.choice((60.0, 600.0, 1800.0)),
        nodes=rng.randint(1, 8), shards=shards, skewed=rng.choice((0.0, 0.0, 1.0, HOUR)),
        kill_at=rng.choice((None, None, None, rng.random() * 300.0)),
        save_at=rng.choice((None, rng.random() * 100.0)), wishes=[*wishes, *_signals(seed)], plant=plant,
    )  # fmt: skip


def _lasting_scene(seed: int, plant: str) -> Scene:
    """Return a job that lasts until all its shards are in committed outputs: nearly nothing ends its tasks for good."""
    rng = random.Random(f"lasting scene {seed}")
    scope, most = rng.choice(("group", "task", "task")), rng.randint(1, 4)
    least = rng.randint(1, most)
    worker = {"command": "true", "replicas": {"min": least, "max": most}, "restart": {"scope": scope, "limit": 1000}}
    job: dict[str, Any] = {
        "name": "sim",
        "roles": {"worker": worker},
        "gang": rng.random() < 0.5,
        "inputs": {"train": {"url": "memory://data", "as": "shards"}},
        "outputs": {"rows": {"url": "memory://out"}},
        "timeouts": {"start": "10m", "storage": "10m"},
        "scale": {"every": "5s", "grow": rng.random() < 0.8},
    }
    if scope == "task" and rng.random() < 0.3:
        job["completion"] = {"failures": 0.0}  # none may fail, by another rule of the end
    habits = Habits(fails=rng.choice((0.0, 0.1, 0.3)), misses_upload=rng.choice((0.0, 0.1, 0.3)), staging=(0.0, 1.0))
    habits = evolve(habits, parts=random.Random(f"parts 32 {seed}").choice((0.0, 0.1, 0.5)))
    if habits.parts and random.Random(f"total 33 {seed}").random() < 0.2:
        worker["restart"], habits = {"scope": scope, "limit": 1, "total": 2}, evolve(habits, fails=0.6)
    scales = [(rng.random() * 100.0, ScaleRequested("worker", rng.randint(least, most), "a user")) for _ in range(4)]
    return Scene(
        job=job, habits=habits, faults=rng.sample(ALL, rng.randint(1, len(ALL))), fault_every=rng.choice((3.0, 20.0, 60.0)),
        stormy=rng.choice((60.0, 600.0)), nodes=rng.randint(2, 8), shards=40, wishes=rng.sample(scales, rng.randint(0, 4)), plant=plant,
    )  # fmt: skip


def _training_scene(seed: int, plant: str) -> Scene:
    """Return a job whose members train one model while they come and go; it is the state of all of them that has learnt the shards."""
    rng = random.Random(f"training scene {seed}")
    most = rng.randint(1, 4)
    worker = {
        "command": "true", "replicas": {"min": rng.randint(1, most), "max": most}, "restart": {"scope": "task", "limit": 1000},
    }  # fmt: skip
    job = {
        "name": "sim",
        "roles": {"worker": worker},
        "gang": rng.random() < 0.5,
        "inputs": {"train": {"url": "memory://data", "as": "shards"}},
        "timeouts": {"start": "10m", "storage": "10m"},
        "scale": {"every": "5s", "grow": rng.random() < 0.8},
    }
    habits = Habits(fails=0.0, staging=(0.0, 1.0), meets=RENDEZVOUS, trains=True, reads=(0.1, 5.0))
    scales = [(rng.random() * 100.0, ScaleRequested("worker", rng.randint(1, most), "a user")) for _ in range(4)]
    return Scene(
        job=job, habits=habits, faults=rng.sample(ALL, rng.randint(1, len(ALL))), fault_every=rng.choice((3.0, 20.0, 60.0)),
        stormy=rng.choice((60.0, 600.0)), nodes=rng.randint(2, 8), shards=40, wishes=rng.sample(scales, rng.randint(0, 4)), plant=plant,
    )  # fmt: skip


def _make_odd(seed: int, job: dict[str, Any]) -> None:
    """Give one scene in seven rare roles: a server that starts after those it serves; a watcher that counts, though it restarts alone, or
    whose success ends the job. Drawn apart from all else too.
    """
    rng = random.Random(f"odd roles 83 {seed}")
    if rng.random() >= 0.15:
        return
    worker = job["roles"]["worker"]
    worker["after"] = {name: condition for name, condition in worker.get("after", {}).items() if name != "ps"}
    job["roles"]["ps"] = _role(rng, "task", 1) | {"after": {"worker": "running"}}
    job["roles"]["evaluator"] = _role(rng, rng.choice(("task", "never")), 2)
    if rng.random() < 0.5:
        job["completion"] = {"first": "evaluator"}
    else:
        job["roles"]["evaluator"]["counts"] = True
        job["completion"] = {"failures": rng.choice((0.0, 0.5, 0.9))}


def _make_elastic(seed: int, job: dict[str, Any]) -> list[tuple[float, Stimulus]]:
    """Let one scene in four change the members of its workers: their least number, how often they may change, and what users ask for
    meanwhile, sense or not. Return that. Drawn apart too.
    """
    rng = random.Random(f"elastic 4795 {seed}")
    if rng.random() >= 0.25:
        return []
    worker = job["roles"]["worker"]
    most = rng.randint(2, 5)
    worker["replicas"] = {"min": rng.randint(1, most - 1), "max": most}
    job["scale"] = {"every": rng.choice(("0s", "5s", "1m")), "grow": rng.random() < 0.9}
    scales = [
        ScaleRequested(rng.choice(("worker", "worker", "nobody")), rng.randint(0, most + 1), "a user") for _ in range(2)
    ]
    kills = [KillTaskRequested(f"worker:{rng.randint(0, most)}", "a user", "to try") for _ in range(2)]
    wishes: list[Stimulus] = [*scales, *kills]
    return [(rng.random() * 200.0, wish) for wish in rng.sample(wishes, rng.randint(0, 4))]


def _signals(seed: int) -> list[tuple[float, Stimulus]]:
    """Return the signals and dumps of users in one scene in seven. Drawn apart too."""
    rng = random.Random(f"signals 62 {seed}")
    if rng.random() >= 0.15:
        return []
    acts = [
        UserActed(rng.choice(("signal", "dump")), f"worker:{rng.randint(0, 2)}", "a user", "SIGTERM") for _ in range(6)
    ]
    return [(rng.random() * 200.0, act) for act in acts]


def _make_warm(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Have newcomers make templates in one scene in three, for longer than is waited for in half of those. Return the habits for that.
    Drawn apart too.
    """
    rng = random.Random(f"warm ups 1 {seed}")
    is_warm = rng.random() < 0.3
    for role in job["roles"].values():
        role["warm"] = is_warm
    return {"warms_up": (0.0, rng.choice((1.0, 60.0)))} if is_warm else {}


def _make_poisonous(seed: int, job: dict[str, Any], shards: int) -> dict[str, Any]:
    """Let shards of one scene in three that has any kill their readers, or none of them, where accusing them is on all the same. Return the
    habits for that. Drawn apart too.
    """
    rng = random.Random(f"poison 70172 {seed}")
    if not shards or rng.random() >= 0.3:
        return {}
    job["inputs"]["train"]["poison"] = rng.choice((0, 1, 2, 3))
    return {"poison": frozenset(rng.sample(range(shards), rng.choice((0, 1, 1, 2)))), "tells_begun": True}


def _make_paced(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Let the programs of one scene in thirty report their steps, which some make slowly, and have the number of workers follow from that.
    Return the habits for that. Drawn apart too, so that no seed kept as a test is such a scene.
    """
    rng = random.Random(f"paces 8 {seed}")
    if rng.random() >= 0.03 or job["roles"]["worker"]["restart"]["scope"] == "never":
        return {}
    job["roles"]["worker"] |= {
        "replicas": {"min": rng.choice((1, 4)), "max": rng.randint(4, 6)},
        "stragglers": rng.choice(("name", "replace")),
    }
    job["scale"] = {"every": rng.choice(("0s", "10s")), "auto": rng.choice(("off", "advise", "on"))}
    steps = Steps(
        rng.choice((0.1, 1.0)), rng.choice((2.0, math.inf)), slow=3.0, index=rng.randrange(4),
        until=1000.0, noise=0.1,
    )  # fmt: skip
    job["timeouts"]["job"] = "none"
    return {"runs": (1200.0, 1500.0), "fails": 0.0, "hangs": 0.0, "progresses": False, "steps": steps}


def _make_meeting(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Let the programs of one scene in ten wait for each other; of a rendezvous, most have workers that restart alone, and come and go.
    Return the habits for that. Drawn apart too, so that no seed kept as a test is such a scene.
    """
    rng = random.Random(f"meetings 8 {seed}")
    if rng.random() >= 0.1:
        return {}
    job["timeouts"]["job"] = "none"  # it would end those who wait for ever
    worker = job["roles"]["worker"]
    kind = rng.choice((RENDEZVOUS, RENDEZVOUS, BARRIER, LOCK))
    if kind == RENDEZVOUS and "checkpoint" not in job:  # which is of a group that restarts together
        most = rng.randint(2, 5)
        worker["restart"]["scope"], worker["replicas"] = "task", {"min": rng.randint(1, most), "max": most}
    if (
        kind == BARRIER and "fetch" in job["roles"]
    ):  # the others begin after it has ended, and would never come to its barrier
        kind = LOCK
    return {"meets": kind, "runs": (30.0, rng.choice((100.0, 600.0)))}


def _with_strange_names(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Return the job, in one scene in four with strange names for its roles. Drawn apart too."""
    rng = random.Random(f"names 7 {seed}")
    if rng.random() >= 0.25:
        return job
    return rename_roles(job, dict(zip(("worker", "fetch"), rng.sample(STRANGE_NAMES, 2), strict=True)))


def rename_roles(job: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the job with other names for some of its roles, wherever it names them."""

    def renamed(text: str) -> str:
        role, colon, index = text.partition(":")
        return names.get(role, role) + colon + index

    roles = {renamed(name): dict(role) for name, role in job["roles"].items()}
    for role in roles.values():
        if "after" in role:
            role["after"] = {renamed(name): condition for name, condition in role["after"].items()}
    job = {**job, "roles": roles}
    for kind, key in (("outputs", "from"), ("inputs", "to")):
        if kind in job:
            job[kind] = {
                name: {**section, key: renamed(section[key]) if key == "from" else [renamed(to) for to in section[key]]}
                for name, section in job[kind].items()
            }
    if "first" in job.get("completion", {}):
        job["completion"] = {"first": renamed(job["completion"]["first"])}
    return job


def _rare_habits(seed: int) -> dict[str, Any]:
    """Return rare habits for one scene in seven. They are drawn apart from all else, so that seeds kept as tests keep their scenes."""
    rng = random.Random(f"rare habits 10 {seed}")
    if rng.random() >= 0.15:
        return {}
    return {"stillborn": rng.choice((0.0, 0.3, 1.0)), "deaf": rng.choice((0.0, 0.3))}


def _stages_slowly(seed: int) -> bool:
    """Tell whether staging may take longer than `timeouts.start`: in one scene of ten, drawn apart as well."""
    return random.Random(f"slow staging 4 {seed}").random() < 0.1


def _roles(rng: random.Random, scope: str) -> dict[str, Any]:
    roles = {"worker": _role(rng, scope, rng.randint(1, 4))}
    if scope != "never" and rng.random() < 0.1:
        roles["worker"]["retry_memory"] = 1.5
    if rng.random() < 0.3:
        roles["ps"] = _role(rng, "task", 1)
        roles["worker"]["after"] = {"ps": "running"}
    if rng.random() < 0.2:
        roles["fetch"] = _role(rng, "task", 1)
        roles["worker"]["after"] = {**roles["worker"].get("after", {}), "fetch": "succeeded"}
    if rng.random() < 0.2:
        roles["evaluator"] = _role(rng, "task", 1)
    return roles


def _role(rng: random.Random, scope: str, most: int) -> dict[str, Any]:
    least = rng.randint(1, most)
    replicas: Any = {"min": least, "max": most} if scope == "group" and least < most and rng.random() < 0.4 else most
    return {"command": "true", "replicas": replicas, "restart": {"scope": scope, "limit": rng.randint(0, 4)}}


def independent_day(tasks: int = 10_000) -> Scene:
    """Return a day of tasks that restart alone, 1 % of them failing an hour."""
    return _day(tasks, "task", 3600.0 / (tasks * 0.01))


def gang_day(tasks: int = 1_000) -> Scene:
    """Return a day of one group, 1 % of its tasks failing an hour, each failure restarting all."""
    return _day(tasks, "group", 3600.0 / (tasks * 0.01))


def _day(tasks: int, scope: str, every: float) -> Scene:
    job = {
        "name": "day",
        "roles": {"worker": {"command": "true", "replicas": tasks, "restart": {"scope": scope, "limit": 3}}},
        "gang": scope == "group",
    }
    habits = Habits(runs=(math.inf, math.inf), progresses=False, ignores_term=0.0, staging=(0.5, 5.0))
    faults = (KillAgent(), KillAgent(), KillAgent(), Preempt(), LoseNode(False), CutNetwork(20.0))
    return Scene(job=job, habits=habits, faults=faults, fault_every=every, stormy=DAY, nodes=tasks * 4, until=DAY)
