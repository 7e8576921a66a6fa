"""Apply events to the state: `fold(state, events)`, a table of small functions over one mutable state.

Folding decides nothing. An event carries all that it means for the future, put there when it was decided. So a replay of the log gives the
same state, also by a later version or on another machine. Events of unknown types change only the position. Events of one decision count
together or not at all: each but the last says how many follow (`rest`), and is held until they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster.core.fold import incidents, pacing
from trainmaster.core.fold.earlier import completed
from trainmaster.core.fold.moves import (
    become_member,
    become_spare,
    connect,
    doom,
    drop,
    finalize,
    move,
    seek_spares,
    touch_dependents,
    touch_role,
    warm_up,
)
from trainmaster.core.fold.saving import arm_save, save_put_off, save_requested, saved, saves_pruned
from trainmaster.core.input.shards import ShardTable, passed_words
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.orders import USERS_VERBS
from trainmaster.core.machine.phases import (
    COMMITTING,
    DONE,
    ENDED,
    EXITED,
    LIVE,
    NEW,
    READY,
    RUNNING,
    STAGING,
    STARTING,
    UPLOADED,
    check_event,
)
from trainmaster.core.machine.state import (
    ASKED,
    CHECKPOINT,
    GRANTED,
    LOG,
    NONE,
    Group,
    State,
    Task,
    group_unit,
    loss_kind,
    populate,
)
from trainmaster.core.spec.reading import job_from
from trainmaster.core.states import KILLED, SUCCEEDED

KEPT_ACTS = 16  # of users on one attempt: more than any agent misses while it is out of reach

Data = Mapping[str, Any]


def fold(state: State, events: Iterable[Event]) -> State:
    """Take `events` into `state`, in place; returns it."""
    for event in events:
        if event.type == "master-started":
            state.incomplete = []  # their writer died before it had said all
        state.incomplete.append(event)
        if "rest" not in event.data:
            decision, state.incomplete = state.incomplete, []
            for part in decision:
                _change(state, part)
        state.n, state.at, state.epoch = event.n, event.at, event.epoch
    return state


def _change(state: State, event: Event) -> None:
    change = _CHANGES.get(event.type)
    if change is None:
        return
    data = completed(state, event)
    if (task := state.tasks.get(data.get("task", ""))) is not None:
        check_event(event.type, task.key, task.phase)
    change(state, data, event.at)
    if event.type in _ADVANCES:
        state.takeovers = 0


# -- the beginning --


def _submitted(state: State, data: Data, at: float) -> None:
    state.id, state.submitted = data["id"], min(at, data.get("since", at))
    populate(state, job_from(data["job"]))
    state.arm("job", "", None if state.known_job.timeouts.job is None else at + state.known_job.timeouts.job)


def _master_started(state: State, data: Data, at: float) -> None:
    """Reset what the last master did: a new one has sent nothing yet, and must hear of every agent and ask again."""
    state.waiting = None
    state.takeovers, state.takeover_at = data["takeovers"], at
    state.boot = data.get("boot")
    for task in state.tasks.values():
        connect(state, task, False)
        task.sent = {}
        if task.hold == ASKED:
            task.hold, task.serial = NONE, task.serial - 1
        elif task.hold == GRANTED:
            _arm_gone(state, task, at + data["lease"])
        state.touch(task)


def _arm_gone(state: State, task: Task, at: float) -> None:
    """Set when the task's agent, if it stays out of reach, has surely stopped its program: `at` plus its own and its program's grace."""
    state.arm("gone", task.key, at + state.known_job.timeouts.grace + state.role(task).stop.grace)


def _inputs_listed(state: State, data: Data, at: float) -> None:
    state.listings = dict(data["listings"])
    for name, listing in state.listings.items():
        if "shards" in listing:
            state.shards[name] = ShardTable.from_listing(listing, name=name)
    if data.get("checkpoint") is not None:  # sets that an earlier job left where this one keeps its own
        state.checkpoint = dict(data["checkpoint"])
        for group in state.groups:
            group.set = state.checkpoint["set"]
    state.unsettled.update(dict.fromkeys(state.tasks))


def _asked(state: State, data: Data, at: float) -> None:
    for key, serial in data["tasks"]:
        task = state.tasks[key]
        if task.hold == NONE:
            task.serial, task.hold, task.reported, task.left = serial, ASKED, 0, False
            state.touch(task)


def _waiting(state: State, data: Data, at: float) -> None:
    state.waiting = dict(data) if data["resource"] else None


def _granted(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    if task.hold == GRANTED:
        return
    if data["serial"] != task.serial:
        task.reported = 0
    task.serial, task.hold, task.container, task.node = data["serial"], GRANTED, data["container"], data["node"]
    task.left = False
    group = state.groups[task.group]
    group.granted[task.role] += 1
    state.waiting = None
    limit = state.known_job.timeouts.start
    if limit is not None:
        if group.sizes is None and ("gang", str(group.number)) not in state.deadlines:
            state.arm("gang", str(group.number), at + limit)
        state.arm("start", task.key, at + limit)
    state.touch(task)


def _stray(state: State, data: Data, at: float) -> None:
    state.strays[data["task"], data["serial"]] = None


def _refused(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    if task.is_spare:  # the job goes on without it
        task.grows = False
        state.touch(task)
    else:
        state.refused = dict(data)


def _grants_returned(state: State, data: Data, at: float) -> None:
    group = state.groups[data["group"]]
    for task in state.members(group):
        task.blocked = True
        state.touch(task)
    state.arm("gang", str(group.number), None)
    state.arm("backoff", group_unit(group.number).text, data["until"])


def _sized(state: State, data: Data, at: float) -> None:
    group = state.groups[data["group"]]
    state.arm("gang", str(group.number), None)
    group.elastic, group.changed = list(data.get("elastic", ())), at
    for task in list(state.members(group)):
        if task.index >= data["sizes"][task.role]:
            state.over[task.role] -= bool(task.final)  # it failed before it was known not to be a member
            become_spare(state, task)
            if task.role not in group.elastic:
                task.final, task.reason = KILLED, "not-needed"
        state.touch(task)
    group.sizes = dict(data["sizes"])
    seek_spares(state, group)


def _change_planned(state: State, data: Data, at: float) -> None:
    state.arm("change", str(data["group"]), data["due"])


def _resized(state: State, data: Data, at: float) -> None:
    group = state.groups[data["group"]]
    for key in data["left"]:
        become_spare(state, state.tasks[key])
    if data["restarts"]:
        group.forming, group.finishing, group.rewinding = True, False, state.known_job.checkpoint is not None
        for task in state.members(group):
            if task.whole and task.phase in LIVE and task.phase != COMMITTING:
                doom(state, task, "change")
    for key in data["joined"]:
        become_member(state, state.tasks[key])
    group.sizes, group.changed, group.changes = dict(data["sizes"]), at, group.changes + 1
    state.waiting = None
    state.arm("change", str(group.number), None)
    seek_spares(state, group)
    for name in group.roles:
        touch_dependents(state, name)


def _opened(state: State, group: Group) -> None:
    group.opened = True
    for task in state.members(group):
        state.touch(task)


# -- agents --


def _agent_connected(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    if task.hold != GRANTED:  # the note that it was granted was lost with a master
        _granted(state, {"container": "", "node": "", **data}, at)
    connect(state, task, True)
    task.sent, task.node = {}, data.get("node") or task.node
    if task.is_spare:
        state.groups[task.group].arrived_at = at
    state.arm("gone", task.key, None)
    if task.phase == NEW:
        state.arm("start", task.key, None)
    state.touch(task)


def _agent_disconnected(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    connect(state, task, False)
    task.sent = {}
    if task.hold == GRANTED:
        _arm_gone(state, task, at + data["lease"])
    state.touch(task)


def _ordered(state: State, data: Data, at: float) -> None:
    verb = data["verb"]
    for key, serial, attempt, order in data["tasks"]:
        task = state.tasks[key]
        if serial != task.serial or attempt != task.attempt:
            continue
        task.sent[verb] = order
        if verb == "stop" and task.live:  # else it ended while the order was on its way
            state.arm("stop", key, at + state.role(task).stop.grace + data["limit"])
        elif verb == "commit" and task.phase == COMMITTING:
            state.arm("commit", key, at + data["limit"])
        if verb == "prepare" and task.phase == NEW:
            move(state, task, STAGING, at)
            task.staged = 0.0
            _arm_start(state, task, at)
            _stop_if_final(state, task)
        state.touch(task)


def _stop_if_final(state: State, task: Task) -> None:
    """Stop an attempt that begins although its task is over: the order to prepare it was on its way when the job began to end."""
    if task.final:
        state.arm("start", task.key, None)
        doom(state, task, "end")


def _arm_start(state: State, task: Task, at: float) -> None:
    limit = state.known_job.timeouts.start
    state.arm("start", task.key, None if limit is None else at + limit)


def _warmed_up(state: State, task: Task, data: Data, at: float) -> None:
    warm_up(state, task)


def _report(change: Callable[[State, Task, Data, float], None]) -> Callable[[State, Data, float], None]:
    """Wrap a change that a numbered report made: the task remembers the number, so that no report is taken in twice."""

    def folded(state: State, data: Data, at: float) -> None:
        task = state.tasks[data["task"]]
        change(state, task, data, at)
        task.reported = max(task.reported, data.get("report") or 0)

    return folded


def _staging(state: State, task: Task, data: Data, at: float) -> None:
    task.staged = data["done"] / data["total"] if data.get("total") else 0.0
    _arm_start(state, task, at)


def _ready(state: State, task: Task, data: Data, at: float) -> None:
    move(state, task, READY, at)
    task.address, task.ports, task.devices = data["address"], dict(data.get("ports") or {}), data.get("devices") or 0
    task.restored = (data.get("restored") or {}).get("set")
    state.arm("start", task.key, None)
    if state.role(task).serves:
        touch_role(state, task.role)  # the others may have waited for this one
    _stop_if_final(state, task)


def _generation_formed(state: State, data: Data, at: float) -> None:
    group = state.groups[data["group"]]
    group.generation, group.forming, group.finishing = data["generation"], False, False
    group.began, group.formed = at if group.began is None else group.began, at
    group.ranks = dict(data["ranks"])
    for key, attempt in data["members"]:
        task = state.tasks[key]
        if task.attempt == attempt and task.phase == READY:
            move(state, task, STARTING, at)
            _arm_start(state, task, at)
    if group.warming_up:  # there is a member now whose orders tell what theirs will be
        for role in group.elastic:
            touch_role(state, role)


def _member_joined(state: State, data: Data, at: float) -> None:
    task, group = state.tasks[data["task"]], state.groups[state.tasks[data["task"]].group]
    move(state, task, STARTING, at)
    group.generation, group.forming = data["generation"], False
    group.ranks[task.key] = data["rank"]
    _arm_start(state, task, at)


def _started(state: State, task: Task, data: Data, at: float) -> None:
    move(state, task, RUNNING, at)
    task.started = at
    state.arm("start", task.key, None)
    if ("save", "") not in state.deadlines and task.commits:
        arm_save(state, at)


def _progressed(state: State, task: Task, data: Data, at: float) -> None:
    incidents.note_reached(state, task, data)
    incidents.give_back(state, task)


def _exited(state: State, task: Task, data: Data, at: float) -> None:
    move(state, task, EXITED if task.commits else UPLOADED, at)
    group = state.groups[task.group]
    if task.whole and task.counts and not group.finishing:
        group.finishing = True
        for peer in state.members(group):
            state.touch(peer)


def _uploaded(state: State, task: Task, data: Data, at: float) -> None:
    move(state, task, UPLOADED, at)
    task.outputs = dict(data.get("outputs") or {})


def _part_committed(state: State, task: Task, data: Data, at: float) -> None:
    task.parts = [*task.parts, {name: data[name] for name in ("attempt", "part", "outputs")}]
    for name, ranges in data["kept"].items():
        state.shards[name].keep(task.key, ranges)
    if data["kept"]:
        incidents.give_back(state, task, keep_total=True)  # one that fails at one place each time commits other shards


def _committers_named(state: State, data: Data, at: float) -> None:
    for key, attempt in data["attempts"]:
        task = state.tasks[key]
        if task.attempt != attempt or task.phase != UPLOADED:
            continue
        if task.commits:
            move(state, task, COMMITTING, at)
        else:
            _done(state, task, at)


def _done(state: State, task: Task, at: float) -> None:
    move(state, task, DONE, at)
    for table in state.shards.values():
        table.keep(task.key)
    finalize(state, task, SUCCEEDED)


def _output_committed(state: State, task: Task, data: Data, at: float) -> None:
    _done(state, task, at)
    task.outputs = dict(data.get("outputs") or task.outputs)
    _progressed(state, task, data, at)


def _warned(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    task.warned = {name: data[name] for name in ("seconds", "reason", "figures") if name in data}
    state.touch(task)


def _user_acted(state: State, data: Data, at: float) -> None:
    task = state.tasks[data["task"]]
    if data["action"] in USERS_VERBS and data["attempt"] == task.attempt:
        number = task.acts[-1][0] + 1 if task.acts else 1
        task.acts = [*task.acts[1 - KEPT_ACTS :], [number, data["action"], data["detail"], data["by"]]]
        state.touch(task)


# -- data --


def _shards(kind: str) -> Callable[[State, Data, float], None]:
    def folded(state: State, data: Data, at: float) -> None:
        task = state.tasks.get(data.get("task", ""))
        if task is not None:
            task.reported = max(task.reported, data.get("report") or 0)
        if data["input"] in state.shards:
            state.shards[data["input"]].apply(kind, {**data, "at": at} if kind == "shard-set-aside" else data)

    return folded


def _input_counted(state: State, task: Task, data: Data, at: float) -> None:
    state.shards[data["input"]] = ShardTable.from_listing(data["listing"])


def _state_begun(state: State, task: Task, data: Data, at: float) -> None:
    """Note the state that a round of a training begins with; the shards that are not in it are returned by events of their own."""
    for table in state.shards.values():
        table.trainings.begin(data["training"], data["round"], data["step"])


def _shards_begun(state: State, task: Task, data: Data, at: float) -> None:
    task.begun = [*task.begun[-1:], [data["attempt"], [list(row) for row in data["begun"]]]]


def _checkpoint_saved(state: State, task: Task, data: Data, at: float) -> None:
    state.checkpoint_at = at
    if state.checkpoint is None or data["set"] > state.checkpoint["set"]:
        state.checkpoint = {name: value for name, value in data.items() if name != "refunds"}
    state.losses.pop(f"{task.key} {CHECKPOINT}", None)
    if "refunds" not in data:  # a log of before only progress beyond the best counted
        _progressed(state, task, data, at)
    elif data["refunds"]:
        incidents.give_back(state, task, keep_total=True)


def _rewound(state: State, data: Data, at: float) -> None:
    """Set the checkpoint set that the group's next attempts begin from; members that are to be prepared waited for its number."""
    group = state.groups[data["group"]]
    group.rewinding, group.set = False, data["set"]
    members = list(state.members(group))
    for task in members:
        state.touch(task)
    for name, count in data.get("without", {}).items():
        state.losses[f"group {group.number} work {name} {data['set']}"] = {
            "what": f"work {name}", "shards": count, "task": members[0].key, "attempt": members[0].attempt, "at": at,
            "detail": passed_words(count, data["set"]),
        }  # fmt: skip


def _feed_read(state: State, task: Task, data: Data, at: float) -> None:
    """Change nothing: the master of a feed lives as long as its feeders, and `core.input.feeding` knows what was read."""


def _feed_ended(state: State, data: Data, at: float) -> None:
    """Change nothing, as above."""


def _trouble(state: State, task: Task, data: Data, at: float) -> None:
    task.trouble = {name: data[name] for name in ("what", "detail", "bytes") if name in data} | {"at": at}
    if kind := loss_kind(str(data.get("what"))):
        attempt = data.get("attempt", task.attempt)
        key = f"{task.key} {data['what']}" + (f" {attempt}" if kind == LOG else "")
        state.losses[key] = {**task.trouble, "task": task.key, "attempt": attempt}


# -- the end --


def _kill_requested(state: State, data: Data, at: float) -> None:
    state.kill = state.kill or dict(data)


def _job_timed_out(state: State, data: Data, at: float) -> None:
    state.timed_out = True
    state.arm("job", "", None)


def _ending(state: State, data: Data, at: float) -> None:
    state.ending = dict(data)
    state.incidents.clear()
    for kind, key in list(state.deadlines):
        if kind in ("job", "settle", "backoff", "gang", "start", "save", "change"):
            state.arm(kind, key, None)
    for task in state.tasks.values():
        if task.phase in LIVE and task.phase != COMMITTING:
            doom(state, task, "end")
        elif not task.final and task.phase != COMMITTING:
            task.reason = task.reason or ("not-needed" if data["state"] == "succeeded" else data["reason"])
            finalize(state, task, KILLED)
        state.touch(task)


def _commits_abandoned(state: State, data: Data, at: float) -> None:
    """Stop the commits under way like the rest; a commit whose container is gone is over."""
    for task in state.tasks.values():
        if task.phase == COMMITTING and task.hold != GRANTED:
            move(state, task, ENDED, at)
            finalize(state, task, KILLED)
        elif task.phase == COMMITTING:
            doom(state, task, "end")


def _left(state: State, task: Task, data: Data, at: float) -> None:
    task.left = True
    state.touch(task)


def _ended(state: State, data: Data, at: float) -> None:
    state.ended = {**data, "at": at}
    state.deadlines.clear()
    state.unsettled.update(dict.fromkeys(state.tasks))


def _released(state: State, data: Data, at: float) -> None:
    for key, serial in data["tasks"]:
        task = state.tasks[key]
        state.strays.pop((key, serial), None)
        if task.serial == serial:
            drop(state, task)


def _step_done(state: State, data: Data, at: float) -> None:
    if data["step"].startswith("prune-saves:"):
        saves_pruned(state, data["step"].partition(":")[2])
        return
    state.steps[data["step"]] = data.get("gave_up", "")
    if data["step"] == "leave":
        state.leaving = True
        state.arm("leave", "", at + data["limit"])
        state.unsettled.update(dict.fromkeys(state.tasks))
    elif data["step"].startswith("open:"):
        _opened(state, state.groups[int(data["step"][5:])])


# Only a master that works brings these about; one that its job kills at once does not.
_ADVANCES = frozenset(
    {"started", "progressed", "shards-done", "checkpoint-saved", "exited", "uploaded", "attempt-ended"}
)

_CHANGES: dict[str, Callable[[State, Data, float], None]] = {
    "submitted": _submitted,
    "master-started": _master_started,
    "inputs-listed": _inputs_listed,
    "input-counted": _report(_input_counted),
    "asked": _asked,
    "waiting": _waiting,
    "granted": _granted,
    "stray": _stray,
    "refused": _refused,
    "grants-returned": _grants_returned,
    "sized": _sized,
    "change-planned": _change_planned,
    "resized": _resized,
    "scale-requested": pacing.scale_requested,
    "scale-advised": pacing.scale_advised,
    "throughput": pacing.throughput,
    "straggling": pacing.straggling,
    "straggling-over": pacing.straggling_over,
    "agent-connected": _agent_connected,
    "agent-disconnected": _agent_disconnected,
    "ordered": _ordered,
    "staging": _report(_staging),
    "ready": _report(_ready),
    "generation-formed": _generation_formed,
    "member-joined": _member_joined,
    "warmed-up": _report(_warmed_up),
    "started": _report(_started),
    "progressed": _report(_progressed),
    "exited": _report(_exited),
    "died": _report(incidents.died),
    "uploaded": _report(_uploaded),
    "part-committed": _report(_part_committed),
    "committers-named": _committers_named,
    "output-committed": _report(_output_committed),
    "attempt-ended": _report(incidents.attempt_ended),
    "attempt-written-off": incidents.written_off,
    "container-ended": incidents.container_ended,
    "incident": incidents.incident,
    "settled": incidents.settled,
    "backoff-over": incidents.backoff_over,
    "task-failed": incidents.task_failed,
    "warned": _warned,
    "shards-done": _shards("shards-done"),
    "shards-returned": _shards("shards-returned"),
    "shards-begun": _report(_shards_begun),
    "state-begun": _report(_state_begun),
    "shard-failed": _shards("shard-failed"),
    "shard-set-aside": _shards("shard-set-aside"),
    "feed-read": _report(_feed_read),
    "feed-ended": _feed_ended,
    "checkpoint-saved": _report(_checkpoint_saved),
    "rewound": _rewound,
    "save-requested": save_requested,
    "save-put-off": save_put_off,
    "saved": _report(saved),
    "trouble": _report(_trouble),
    "user-acted": _user_acted,
    "kill-requested": _kill_requested,
    "job-timed-out": _job_timed_out,
    "ending": _ending,
    "commits-abandoned": _commits_abandoned,
    "left": _report(_left),
    "ended": _ended,
    "released": _released,
    "step-done": _step_done,
}
