"""Turn a stimulus into events: `decide(state, stimulus, now)`.

Two halves. *Reactions* turn one stimulus into the facts it states, refusing what is stale: a report is taken only from the present
container and attempt of a task, in its place in the order of phases, and once. *Advances* (in `advance`, the stimulus None) turn what
has become true into the next fact: a gang that is granted is sized, a group that is ready forms its generation, a job whose tasks are
done ends. `drive` alternates them until nothing more follows. Nothing here changes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.core.decide import autoscaling, failures, limits, poison, stragglers
from trainmaster.core.decide.consequences import PARTIAL_BACKOFF, advance
from trainmaster.core.decide.elastic import scale_fault
from trainmaster.core.input.feeding import is_range
from trainmaster.core.input.shards import MEMBERS, NAMED_BY_PROGRAMS, OUTPUTS, RECORDS, File, Options, ShardTable
from trainmaster.core.input.trainings import training_name
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.events import Fact
from trainmaster.core.machine.orders import USERS_VERBS
from trainmaster.core.machine.phases import COMMITTING, EXITED, LIVE, NEW, READING, RUNNING, STAGING, STARTING
from trainmaster.core.machine.state import (
    ASKED,
    GRANTED,
    State,
    Task,
    commits_parts,
    gets_further,
    keeper,
    newest_round,
    unit_of,
    units_of,
)
from trainmaster.core.spec.job import COUNTED_LATER, NAN
from trainmaster.core.waits import LONGEST

STAGED_PART = 1 / 16  # of what is fetched: an agent that fetches less within `timeouts.start` is too slow


def decide(state: State, stimulus: stimuli.Stimulus | None, now: float) -> list[Fact]:
    """Return the facts that `stimulus` states at the time `now` (s since 1970), or with None those that follow from the state alone."""
    if stimulus is None:
        return advance(state, now)
    return _REACTIONS[type(stimulus)](state, stimulus, now)


# -- the user and the master --


def _submitted(state: State, stimulus: stimuli.Submitted, now: float) -> list[Fact]:
    known = {name: value for name in ("since", "user", "engine") if (value := getattr(stimulus, name)) is not None}
    return [] if state.id else [("submitted", {"id": stimulus.id, "job": dict(stimulus.job), **known})]


def _master_started(state: State, stimulus: stimuli.MasterStarted, now: float) -> list[Fact]:
    is_short = now - state.takeover_at < limits.SHORT_LIFE
    # A master that leaves no last words was killed or deleted: that is nothing that the job has done.
    takeovers = (state.takeovers if is_short else 0) + bool(is_short and stimulus.before)
    started = {"read": dict(stimulus.read), "place": stimulus.place, "takeovers": takeovers, "lease": limits.LEASE}
    facts: list[Fact] = [("master-started", started | ({"boot": stimulus.boot} if stimulus.boot else {}))]
    if state.id and state.ending is None and takeovers >= limits.TAKEOVERS:
        figures = {"masters": takeovers, "detail": stimulus.before}
        facts.append(("ending", {"state": "failed", "reason": "master-failed", "figures": figures}))
    return facts


def _kill(state: State, stimulus: stimuli.KillRequested, now: float) -> list[Fact]:
    if state.ending is not None or state.kill is not None:
        return []
    reason = {} if stimulus.reason == "killed-by-user" else {"reason": stimulus.reason}
    return [("kill-requested", {"by": stimulus.by, "why": stimulus.why, **reason})]


def _kill_task(state: State, stimulus: stimuli.KillTaskRequested, now: float) -> list[Fact]:
    task = state.tasks.get(stimulus.task)
    if task is None or task.final or task.hold != GRANTED or state.ending is not None:
        return []
    figures = {"by": stimulus.by, "why": stimulus.why}
    return failures.container_gone(state, task, "killed-by-user", figures, now, by_engine=True, gone=False)


def _scale(state: State, stimulus: stimuli.ScaleRequested, now: float) -> list[Fact]:
    if scale_fault(state, stimulus.role, stimulus.size):
        return []
    return [("scale-requested", {"role": stimulus.role, "size": stimulus.size, "by": stimulus.by})]


def _given_up(state: State, stimulus: stimuli.GivenUp, now: float) -> list[Fact]:
    if state.ending is not None:
        return []
    return [("ending", {"state": "failed", "reason": stimulus.reason, "figures": dict(stimulus.figures)})]


def _save(state: State, stimulus: stimuli.SaveRequested, now: float) -> list[Fact]:
    if state.ending is not None or any(save["save"] == stimulus.save for save in state.saves):
        return []
    return [("save-requested", {"save": stimulus.save, "by": stimulus.by})]


def act_fault(state: State, key: str) -> str:
    """Return why users cannot act on the program of a task, "" where they can."""
    task = state.tasks[key]
    if task.phase == RUNNING and not task.doomed and state.ended is None:
        return ""
    return f"the program of {key} does not run: it is {'stopping' if task.doomed else task.state}"


def _user_acted(state: State, stimulus: stimuli.UserActed, now: float) -> list[Fact]:
    if stimulus.task not in state.tasks or (stimulus.action in USERS_VERBS and act_fault(state, stimulus.task)):
        return []
    return [("user-acted", {"by": stimulus.by, "action": stimulus.action, "task": stimulus.task,
                            "attempt": state.tasks[stimulus.task].attempt, "detail": stimulus.detail})]  # fmt: skip


def _feed_ended(state: State, stimulus: stimuli.FeedEnded, now: float) -> list[Fact]:
    return [("feed-ended", {"role": stimulus.role, "feed": stimulus.feed, "rows": stimulus.rows})]


def _storage_lost(state: State, stimulus: stimuli.StorageLost, now: float) -> list[Fact]:
    figures = {"seconds": state.known_job.timeouts.storage, "detail": stimulus.detail}
    ending: Fact = ("ending", {"state": "failed", "reason": "storage-lost", "figures": figures})
    # No commit could be recorded any more: none is waited for, whatever the job ends by.
    committing = any(group.whole[COMMITTING] + group.single[COMMITTING] for group in state.groups)
    return [*([ending] if state.ending is None else []), *([("commits-abandoned", {})] if committing else [])]


def _secrets_lost(state: State, stimulus: stimuli.SecretsLost, now: float) -> list[Fact]:
    if state.ending is not None:
        return []
    return [("ending", {"state": "failed", "reason": "secrets-lost", "figures": {"job": state.id}})]


def _measured(state: State, measured: stimuli.Measured, now: float) -> list[Fact]:
    if state.ending is not None:
        return []
    return [*stragglers.judge(state, measured.paces), *autoscaling.judge(state, measured.rates, now)]


def _tick(state: State, stimulus: stimuli.Tick, now: float) -> list[Fact]:
    return []  # advances look at the deadlines


# -- the engine --


def _holder(state: State, key: str, serial: int) -> Task | None:
    """Return the task whose present container, or ask, is (key, serial)."""
    task = state.tasks.get(key)
    return task if task is not None and task.serial == serial and task.hold != "none" else None


def _granted(state: State, grant: stimuli.Granted, now: float) -> list[Fact]:
    task = state.tasks.get(grant.task)
    if task is None or (task.hold == GRANTED and task.serial == grant.serial):
        return []  # the engine reported it twice
    if not state.admits(grant.task, grant.serial):
        return [("stray", {"task": grant.task, "serial": grant.serial, "container": grant.container})]
    return [("granted", {"task": grant.task, "serial": grant.serial, "container": grant.container, "node": grant.node,
                         "devices": list(grant.devices)})]  # fmt: skip


def _gang_granted(state: State, gang: stimuli.GangGranted, now: float) -> list[Fact]:
    return [fact for grant in gang.grants for fact in _granted(state, grant, now)]


def _refused(state: State, stimulus: stimuli.Refused, now: float) -> list[Fact]:
    if _holder(state, stimulus.task, stimulus.serial) is None or state.refused is not None:
        return []
    return [("refused", {"task": stimulus.task, "serial": stimulus.serial, "detail": stimulus.detail})]


def _waiting(state: State, stimulus: stimuli.Waiting, now: float) -> list[Fact]:
    if stimulus.resource and _is_for_growth(state):
        return []
    facts = {
        "resource": stimulus.resource,
        "asked": stimulus.asked,
        "free": stimulus.free,
        "detail": stimulus.detail,
        "position": stimulus.position,
    }
    if not stimulus.resource:  # for nothing any more
        return [] if state.waiting is None else [("waiting", facts)]
    return [] if state.waiting == facts or state.ending is not None else [("waiting", facts)]


def _is_for_growth(state: State) -> bool:
    """Tell whether nothing is on its way but containers to grow by, for which nobody waits."""
    underway = [
        task for task in state.tasks.values() if task.hold == ASKED or (task.hold == GRANTED and not task.connected)
    ]
    return bool(underway) and all(task.is_spare for task in underway)


def _container_over(state: State, stimulus: stimuli.ContainerExited | stimuli.ContainerLost, now: float) -> list[Fact]:
    task = _holder(state, stimulus.task, stimulus.serial)
    if task is None:
        return []
    status = getattr(stimulus, "status", None)
    figures = {"status": status, "node": task.node, **stimulus.figures}
    if stimulus.reason == "no-master":
        figures["seconds"] = state.known_job.timeouts.grace
    reason = stimulus.reason or ("agent-lost" if status is not None and status < 0 else "container-exited")
    return failures.container_gone(state, task, reason, figures, now, by_engine=stimulus.reason is not None)


def _warned(state: State, warning: stimuli.Warned, now: float) -> list[Fact]:
    task = _holder(state, warning.task, warning.serial)
    if task is None:
        return []
    figures = {} if warning.figures is None else {"figures": dict(warning.figures)}
    fact = {"task": warning.task, "seconds": warning.seconds, "reason": warning.reason, **figures}
    return [("warned", fact), *(_taken_back(state, task, fact, now) if task.left else [])]


def _taken_back(state: State, task: Task, warned: Mapping[str, Any] | None, now: float) -> list[Fact]:
    """Return the facts of an attempt whose agent has left because its container is taken back. The engine may see the end much later:
    Kubernetes tells of no container before the last one of its pod has ended, and a sidecar may use the whole grace.
    """
    if warned is None or "figures" not in warned or task.phase not in LIVE:
        return []
    figures = {"node": task.node, **warned["figures"]}
    return failures.container_gone(state, task, warned["reason"], figures, now, by_engine=True, gone=False)


def _gang_overdue(state: State, stimulus: stimuli.GangOverdue, now: float) -> list[Fact]:
    """Return the same facts as when `timeouts.start` passes."""
    group = next((group for group in state.groups if f"group-{group.number}" == stimulus.gang), None)
    if group is None or group.sizes is not None or state.ending is not None or not any(group.granted.values()):
        return []
    return [("grants-returned", {"group": group.number, "seconds": stimulus.seconds, "until": now + PARTIAL_BACKOFF})]


# -- agents --


def _connected(state: State, stimulus: stimuli.Connected, now: float) -> list[Fact]:
    if not state.admits(stimulus.task, stimulus.serial):
        return []
    hello = stimulus.hello
    return [("agent-connected", {"task": stimulus.task, "serial": stimulus.serial, "node": hello.get("node", ""),
                                 "address": hello.get("address", ""), "container": hello.get("container", "")})]  # fmt: skip


def _disconnected(state: State, stimulus: stimuli.Disconnected, now: float) -> list[Fact]:
    task = _holder(state, stimulus.task, stimulus.serial)
    if task is None or not task.connected:
        return []
    return [("agent-disconnected", {"task": stimulus.task, "serial": stimulus.serial, "lease": limits.LEASE})]


def _report(state: State, report: stimuli.Report, now: float) -> list[Fact]:
    task = state.tasks.get(report.task)
    react = REPORTS.get(report.kind)
    if (
        task is None
        or react is None
        or task.serial != report.serial
        or task.hold != GRANTED
        or report.n <= task.reported
    ):
        return []
    if report.attempt != task.attempt and report.kind != "left":
        return []  # of an attempt that is over
    facts = react(state, task, report.data, now)
    for _, data in facts[:1]:
        data.update({"task": task.key, "attempt": report.attempt, "report": report.n})
    return facts


Data = Mapping[str, Any]


def _staging(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Return an event only where the limit of the start moves: half of that limit has passed, and `STAGED_PART` of the whole was fetched
    since the last time. Else the report is a mere sample. An input that trickles in is waited for no longer than one that does not come.
    """
    done, total, limit = data.get("done", 0), data.get("total", 0), state.known_job.timeouts.start
    deadline = state.deadlines.get(("start", task.key))
    if task.phase != STAGING or limit is None or deadline is None or total <= 0 or deadline - now > limit / 2:
        return []
    part = done / total
    # A checkpoint that is fetched after the inputs counts from 0 again.
    fetched = part - task.staged if part >= task.staged else part
    return [("staging", {"done": done, "total": total})] if fetched >= STAGED_PART else []


def _ready(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    if task.phase not in (NEW, STAGING):
        return []
    keep = ("address", "network", "ports", "devices", "restored", "elapsed")
    return [("ready", {"address": "", **{name: data[name] for name in keep if name in data}})]


def _warmed_up(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    return [("warmed-up", {"why": str(data.get("why", ""))})] if task.is_spare else []


def _started(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    return [("started", {"pid": data.get("pid", 0), "elapsed": data.get("elapsed")})] if task.phase == STARTING else []


def _progress(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Return an event only for progress that gives a budget back: it must exceed the best so far, since a program that always fails at one
    place reaches that place each time. With `stop_on: nan` a metric that is not a number ends the job.
    """
    if task.phase not in (STARTING, RUNNING) or task.doomed:
        return []
    if state.known_job.stop_on == NAN and state.ending is None:
        from trainmaster.core.metrics import not_a_number  # most jobs need nothing of metrics

        if figures := not_a_number(data):
            return [("ending", {"state": "failed", "reason": "not-a-number", "figures": figures})]
    if not units_of(task) & state.budgets.keys():
        return []
    value, step = data.get("progress", data.get("value")), data.get("step")
    return [("progressed", {"value": value, "step": step})] if gets_further(state, task, value, step) else []


def _ended(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    if task.phase != NEW and task.phase not in LIVE:
        return []
    well = data.get("reason") in ("exit", "succeeded") and not data.get("status")
    if well and task.phase in (STARTING, RUNNING) and not task.doomed:
        return [("exited", {"elapsed": data.get("elapsed")})]
    return failures.attempt_over(state, task, data, now)


def _died(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    return failures.program_died(state, task, data, now) if task.phase in (STARTING, RUNNING) else []


def _part(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Commit a part of the outputs: with the log it counts, and whoever finishes the job's outputs puts it in its place."""
    last = max((part["part"] for part in task.parts if part["attempt"] == task.attempt), default=0)
    number, kept = data.get("number"), data.get("kept")
    if task.phase != RUNNING or state.ending is not None or not commits_parts(state, task):
        return []
    try:
        committed = {
            name: own_ranges
            for name, ranges in (kept or {}).items()
            if (table := state.shards.get(name)) is not None and (own_ranges := table.held_of(task.key, ranges))
        }
    except (ValueError, TypeError, AttributeError):  # not what an agent of ours says
        return []
    if type(number) is not int or number <= last:
        return []
    return [("part-committed", {"part": number, "outputs": dict(data.get("outputs") or {}), "kept": committed})]


def _uploaded(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    return [("uploaded", {"outputs": dict(data.get("outputs") or {})})] if task.phase == EXITED else []


def _committed(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    return [("output-committed", {"outputs": dict(data.get("outputs") or {})})] if task.phase == COMMITTING else []


def _checkpoint(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    if task.phase not in (RUNNING, EXITED) or "set" not in data:
        return []
    keep = ("set", "files", "bytes", "marks", "manifest")
    fact = {name: data[name] for name in keep if name in data}
    # An agent knows moments; what had been done at each is written down as ranges.
    if isinstance(fact.get("marks"), Mapping):
        marks = {name: moment for name, moment in fact["marks"].items() if name in state.shards}
        fact["marks"] = {
            name: state.shards[name].marks(moment) if isinstance(moment, int) else moment
            for name, moment in marks.items()
        }
    # A set shows progress only of programs that report none: a program that fails at one place stores a newer set each time too.
    fact["refunds"] = unit_of(task) not in state.reached
    return [("checkpoint-saved", fact)]


def _saved(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    fact = {"save": data.get("save", ""), "files": data.get("files", 0), "bytes": data.get("bytes", 0)}
    return [("saved", fact | ({"gave_up": data["gave_up"]} if data.get("gave_up") else {}))]


def _trouble(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Note that something beside the program went wrong, while the program goes on."""
    keep = ("what", "detail", "bytes", "save")
    return [("trouble", {name: data[name] for name in keep if name in data})]


def _left(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    gave_up = str(data.get("gave_up", ""))
    missing = [("step-done", {"step": f"logs of {task.key}", "gave_up": gave_up})] if gave_up else []
    return [("left", {"gave_up": gave_up}), *missing, *_taken_back(state, task, task.warned, now)]


def _shards_done(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    table = state.shards.get(data.get("input", ""))
    if table is None or task.phase not in READING:
        return []
    try:
        kept_by = data.get("kept_by")
        if kept_by not in NAMED_BY_PROGRAMS or (kept_by == OUTPUTS and not task.commits):
            kept_by = keeper(state, task)
        states = [
            [_training(task, name), number, step, ranges]
            for name, number, step, ranges in (data.get("states") or () if kept_by == MEMBERS else ())
            if _are_counts(number, step)
        ]
        payload = table.done(task.key, task.attempt, data.get("ranges"), data.get("records"), kept_by, states)
    except (ValueError, TypeError):  # not what an agent of ours says
        return []
    if payload is None:
        return []
    returned = table.supersede(payload)
    return [("shards-done", payload), *([("shards-returned", returned)] if returned["ranges"] else [])]


def _state_begun(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Return the shards that are not in the state with which a round of a training begins.

    Where the state of the round before is lost, those are all whose work was in it, beyond the checkpoint set that the new state is from.
    A member that was away tells of a round late: the others have begun the next one with another state by then.
    """
    number, step, lost = data.get("round", -1), data.get("step", -1), bool(data.get("lost"))
    training = _training(task, data.get("training"))
    if task.phase not in READING or not _are_counts(number, step) or number <= newest_round(state, training):
        return []
    begun: Fact = ("state-begun", {"training": training, "round": number, "step": step, "lost": lost, "set": None})
    if not lost:
        returned = [table.go_back(training, step) for table in state.shards.values()]
    elif data.get("restored") and task.restored is None:
        return [begun]  # from a checkpoint of the program's own, which alone knows what is in it
    else:
        restored = task.restored if data.get("restored") else None
        saved = state.checkpoint or {}
        marks = (saved.get("marks") or {}) if restored is not None and saved.get("set") == restored else {}
        returned = [table.lose_members(training, marks.get(name, []), restored) for name, table in state.shards.items()]
        begun[1]["set"] = restored
    return [begun, *(("shards-returned", payload) for payload in returned if payload["ranges"])]


def _training(task: Task, name: Any) -> str:
    """Return the name of a training of a task's role, which its program calls by the rendezvous at which the members meet."""
    return training_name(task.role, str(name or "")[:LONGEST])


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _input_counted(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Cut an input into shards as the first program counts it. Another program finds that count in its shards, and compares it."""
    name = data.get("input", "")
    source, counts = state.known_job.inputs.get(name), data.get("counts")
    if source is None or source.url != COUNTED_LATER or name in state.shards or task.phase not in READING:
        return []
    if not isinstance(counts, list) or len(counts) != 3 or not all(type(n) is int and n > 0 for n in counts):
        return []  # not what an agent of ours says
    count, size, epochs = counts
    file = File(f"{COUNTED_LATER}{count}/{size}?epochs={epochs}", count, None, RECORDS)
    options = Options(size, epochs, source.shuffle, source.seed)
    return [("input-counted", {"input": name, "listing": ShardTable.make([file], options, name=name).listing()})]


def _feed_read(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    """Return what an attempt was fed and read; also of one that has just ended, whose agent reports the last of it first."""
    if data.get("feed") not in state.role(task).feed or task.phase not in READING:
        return []
    if not all(isinstance(data.get(name), list) and all(map(is_range, data[name])) for name in ("fed", "read")):
        return []  # not what an agent of ours says
    fact = {name: data.get(name, 0) for name in ("feed", "fed", "read", "rows")}
    return [("feed-read", fact | ({"left": data["left"]} if data.get("left") else {}))]


def _shards_begun(state: State, task: Task, data: Data, now: float) -> list[Fact]:
    begun = poison.known_rows(state, data.get("begun"))
    return [("shards-begun", {"begun": begun})] if begun and task.phase in READING else []


REPORTS: dict[str, Callable[[State, Task, Data, float], list[Fact]]] = {
    "staging": _staging,
    "ready": _ready,
    "warmed-up": _warmed_up,
    "started": _started,
    "progress": _progress,
    "died": _died,
    "ended": _ended,
    "part": _part,
    "uploaded": _uploaded,
    "committed": _committed,
    "checkpoint": _checkpoint,
    "saved": _saved,
    "warned": _trouble,
    "input-counted": _input_counted,
    "shards-done": _shards_done,
    "shards-begun": _shards_begun,
    "state-begun": _state_begun,
    "feed-read": _feed_read,
    "left": _left,
}


# -- what was done --


def _did(state: State, stimulus: stimuli.Did, now: float) -> list[Fact]:
    facts: dict[tuple[type, str], list[list[Any]]] = {}
    for action in stimulus.actions:
        if isinstance(action, CommitFor):
            return _did_commit(state, action, stimulus)
        if isinstance(action, Step):
            return _did_step(state, action, stimulus)
        if isinstance(action, Order):
            facts.setdefault((Order, action.verb), []).append([action.task, action.serial, action.attempt, action.id])
        else:
            facts.setdefault((type(action), ""), []).append([action.task, action.serial])
    return [(_DONE[kind], {"tasks": tasks, **_ordered(verb)}) for (kind, verb), tasks in facts.items()]


def _ordered(verb: str) -> dict[str, Any]:
    return {**({"verb": verb} if verb else {}), **({"limit": _LIMITS[verb]} if verb in _LIMITS else {})}


# Verb -> seconds that an agent has to report that it was carried out.
_LIMITS = {"stop": limits.STOP, "commit": limits.COMMIT}
_DONE = {Ask: "asked", Release: "released", Order: "ordered"}


def _did_commit(state: State, action: CommitFor, stimulus: stimuli.Did) -> list[Fact]:
    task = state.tasks[action.task]
    if task.phase != COMMITTING or task.attempt != action.attempt:
        return []
    if stimulus.gave_up:
        return failures.commit_failed(task, {"detail": stimulus.gave_up})
    return [("output-committed", {"task": task.key, "attempt": task.attempt, "outputs": dict(stimulus.result)})]


def _did_step(state: State, action: Step, stimulus: stimuli.Did) -> list[Fact]:
    if action.name == "list-inputs":
        if state.ending is not None or state.listings is not None:
            return []  # too late: the job ends already by another reason
        if stimulus.gave_up or "missing" in stimulus.result:
            missing = dict(stimulus.result.get("missing") or {"detail": stimulus.gave_up})
            return [
                ("ending", {"state": "failed", "reason": missing.pop("reason", "input-missing"), "figures": missing})
            ]
        return [("inputs-listed", dict(stimulus.result))]
    return [("step-done", {"step": action.name, "gave_up": stimulus.gave_up})]


_REACTIONS: dict[type, Callable[..., list[Fact]]] = {
    stimuli.Submitted: _submitted,
    stimuli.MasterStarted: _master_started,
    stimuli.KillRequested: _kill,
    stimuli.KillTaskRequested: _kill_task,
    stimuli.ScaleRequested: _scale,
    stimuli.GivenUp: _given_up,
    stimuli.SaveRequested: _save,
    stimuli.UserActed: _user_acted,
    stimuli.FeedEnded: _feed_ended,
    stimuli.StorageLost: _storage_lost,
    stimuli.SecretsLost: _secrets_lost,
    stimuli.Measured: _measured,
    stimuli.Tick: _tick,
    stimuli.Granted: _granted,
    stimuli.GangGranted: _gang_granted,
    stimuli.Refused: _refused,
    stimuli.Waiting: _waiting,
    stimuli.ContainerExited: _container_over,
    stimuli.ContainerLost: _container_over,
    stimuli.Warned: _warned,
    stimuli.GangOverdue: _gang_overdue,
    stimuli.Connected: _connected,
    stimuli.Disconnected: _disconnected,
    stimuli.Report: _report,
    stimuli.Did: _did,
}
