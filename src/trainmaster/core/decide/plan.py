"""Plan the next actions: `plan(state, now)` compares the desired state with the actual state.

For each task: should it have a container, and what should its agent be doing about the current attempt? For the job: which step of its
beginning or end comes next? An action is planned while the events do not say that it was done, so planning twice asks for nothing new
once the first was carried out. `plan` looks at the unsettled tasks alone, `plan_all` at every one; a property test holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmaster.core.fold.saving import save_to_prune
from trainmaster.core.machine.actions import Action, Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.phases import COMMITTING, NEW, RUNNING, STAGING, STARTING
from trainmaster.core.machine.state import BARRED, GRANTED, NONE, State, Task, pattern_of, role_size, warms_up
from trainmaster.core.spec.job import Job, Role

# The steps of a job's end, in order.
CLOSING = (
    "store-logs",  # the master's own
    "outputs",  # `_SUCCESS`, or what finished tasks committed under `_partial`
    "unregister",  # the engine's record of the final state
    "remove-staging",  # what was uploaded for the start
)


def plan(state: State, now: float) -> list[Action]:
    """Return the actions that are called for, looking only at unsettled tasks."""
    return _plan(state, state.unsettled)


def plan_all(state: State, now: float) -> list[Action]:
    """Return the same actions by the full comparison."""
    return _plan(state, state.tasks)


def settle(state: State, planned: Iterable[Action]) -> None:
    """Keep as unsettled only the tasks that `plan` has just planned something for; called by the owner of the state."""
    state.unsettled = {action.task: None for action in planned if not isinstance(action, Step)}


def _plan(state: State, keys: Iterable[str]) -> list[Action]:
    if not state.id:
        return []
    actions: list[Action] = []
    if state.listings is None and state.ending is None and looks_first(state.known_job):
        actions.append(Step("list-inputs"))
    for key in keys:
        actions += task_actions(state, state.tasks[key])
    actions += [Release(task, serial) for task, serial in state.strays]
    return actions + _pruning(state) + _closing(state)


def looks_first(job: Job) -> bool:
    """Tell whether storage must be read before any task is prepared: inputs, or a place where checkpoint sets may be already."""
    return bool(job.inputs) or (job.checkpoint is not None and bool(job.checkpoint.url))


def _pruning(state: State) -> list[Action]:
    """Remove old saves once a newer one is whole."""
    name = None if state.ended else save_to_prune(state)
    return [Step(f"prune-saves:{name}")] if name else []


def _closing(state: State) -> list[Action]:
    """Return the next step of the list that follows `ended`, one at a time; containers are released before `unregister`."""
    if state.ended is None:
        return []
    for name in CLOSING:
        if name not in state.steps:
            blocked = name == "unregister" and (state.strays or any(task.hold != NONE for task in state.tasks.values()))
            return [] if blocked else [Step(name)]
    return []


def makes_room(state: State) -> list[Step]:
    """Return the steps of the end that may run early while the log cannot be written: nobody needs any more what they remove."""
    return [Step("remove-staging")] if state.leaving else []  # what fills the disk may be our own tasks' directories


def ends_something(action: Action) -> bool:
    """Tell whether an action may be carried out although it cannot be logged: it starts nothing and commits nothing."""
    return isinstance(action, Release | Step) or (isinstance(action, Order) and action.verb in ("stop", "leave"))


def closed(state: State) -> bool:
    """Tell whether the job is over and nothing is left to do."""
    return state.ended is not None and all(name in state.steps for name in CLOSING)


def task_actions(state: State, task: Task) -> list[Action]:
    """Return what one task calls for: at most one action about its container and one order to its agent."""
    if task.phase == COMMITTING and task.hold == NONE:
        return [CommitFor(task.key, task.attempt)]
    needs_container = _needs_container(state, task)
    if task.hold == BARRED:
        return [Release(task.key, task.serial)]
    if task.hold == NONE:
        return [Ask(task.key, task.serial + 1)] if needs_container else []
    if not needs_container:
        return _give_back(state, task)
    if task.hold != GRANTED or not task.connected:
        return []
    verb = _order(state, task)
    orders = _extra_orders(state, task)
    if verb and task.sent.get(verb) != str(task.attempt):
        orders.insert(0, Order(task.key, task.serial, task.attempt, verb, str(task.attempt)))
    return [*orders]


def _needs_container(state: State, task: Task) -> bool:
    if state.ended is not None:
        return False
    if task.live:
        return True
    if state.ending is not None:  # an agent stays until all are ordered to store their logs and leave
        return task.hold == GRANTED and task.connected and not state.leaving
    group = state.groups[task.group]
    if task.final or not group.opened or task.resized or (task.is_spare and not task.grows):
        return False
    return not task.blocked or (task.hold == GRANTED and group.sizes is not None)


def _give_back(state: State, task: Task) -> list[Action]:
    """Release a container that is not needed any more; a connected agent stores its logs first."""
    if state.ended is None and task.hold == GRANTED:
        if task.connected and not task.left:
            leave = Order(task.key, task.serial, task.attempt, "leave", str(task.serial))
            return [] if task.sent.get("leave") == leave.id else [leave]
        if state.leaving:
            return []  # released together, once `ended` is on the log
    return [Release(task.key, task.serial)]


def _order(state: State, task: Task) -> str:
    """Return the verb that the agent should have heard about the current attempt; "" for none."""
    if task.doomed:
        return "stop" if _may_stop(state, task) else ""
    if task.phase in (NEW, STAGING):  # again on a new connection: the order may have been lost with the last
        if warms_up(state, task):
            return "warm-up" if pattern_of(state, task) is not None else ""
        return "prepare" if _may_prepare(state, task) else ""
    if task.phase == STARTING:
        return "start" if _may_start(state, task) else ""
    return "commit" if task.phase == COMMITTING else ""


def _may_prepare(state: State, task: Task) -> bool:
    """Tell whether a task may be prepared: members of one generation share a checkpoint, so all that ran before must have stopped."""
    group = state.groups[task.group]
    if task.final or task.blocked or task.is_spare or state.ending is not None or group.sizes is None:
        return False
    if state.listings is None and looks_first(state.known_job):
        return False
    return not (task.whole and (group.doomed or group.rewinding))


def _may_start(state: State, task: Task) -> bool:
    """Tell whether all roles that `after` names as running do run."""
    dependencies = [dependency for dependency, condition in state.role(task).after.items() if condition == "running"]
    return all(state.running[dependency] >= role_size(state, dependency) for dependency in dependencies)


def _may_stop(state: State, task: Task) -> bool:
    """Tell whether a task may stop: at the end, roles stop in the opposite order of `after`, those that serve others last."""
    if task.doomed != "end":
        return True
    roles = state.known_job.roles
    last = _stops_last(roles, task.role)
    for name, role in roles.items():
        later = task.role in role.after or (last and not role.serves)
        if later and name != task.role and state.over[name] < role_size(state, name):
            return False
    return True


def _stops_last(roles: Mapping[str, Role], name: str) -> bool:
    """Tell whether the role stops after those it serves; where it starts after one of them they would wait for each other."""
    role = roles[name]
    return role.serves and all(
        condition != "running" or _stops_last(roles, dependency) for dependency, condition in role.after.items()
    )


def _extra_orders(state: State, task: Task) -> list[Action]:
    """Return the orders beside the attempt's main line: warnings, saves, users' acts, and the time given once a peer has finished."""
    orders: list[Action] = []
    if task.phase != RUNNING or task.doomed:
        return orders
    if task.warned is not None and task.sent.get("warn") != str(task.attempt):
        orders.append(Order(task.key, task.serial, task.attempt, "warn", str(task.attempt)))
    is_waited_for = task.whole and task.counts and state.groups[task.group].finishing
    if is_waited_for and task.sent.get("peer-finished") != str(task.attempt):
        orders.append(Order(task.key, task.serial, task.attempt, "peer-finished", str(task.attempt)))
    if task.commits and state.saves:
        newest = state.saves[-1]["save"]
        if task.sent.get("save") != newest and state.saves[-1]["at"] >= (task.started or 0.0):
            orders.append(Order(task.key, task.serial, task.attempt, "save", newest))
    for number, verb, *_ in task.acts:
        if number > int(task.sent.get(verb, 0)):
            orders.append(Order(task.key, task.serial, task.attempt, verb, str(number)))
    return orders
