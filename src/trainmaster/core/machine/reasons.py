"""The reasons for an end: a closed table that code, documents and pages read.

Every end of an attempt, a container or a job has exactly one reason out of `REASONS`. The reason says who is at fault, whether a restart
after it is charged to the budget, and how it ranks among several reasons for one incident: the engine's word beats the agent's, a death
beats errors of tasks that depended on the dead one, and elapsed times order the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.plain import Plain
from trainmaster.core.spec.quantities import format_bytes, format_seconds

READ_STDIN = "read_stdin"  # a figure of any end: the program had read of what its command passed on to it
PROGRAM, ENGINE, US, USER = "program", "engine", "us", "user"

# Ranks of a reason as the root cause of an incident; lower is nearer to the root.
_ENGINE_WORD, _DEATH, _ERROR, _CONSEQUENCE = 0, 1, 2, 3


@attrs.frozen(slots=True, eq=False, repr=False)
class Reason(Plain):
    """One way to end. `text` and `advice` are filled with the figures. Where a figure is missing, its clause in brackets is left out, or
    replaced by its second form: `[with it|without it]`.
    """

    fault: str
    restart_costs: bool
    text: str
    rank: int = _ERROR
    advice: str = ""
    final: str = "failed"  # the state of an attempt that ended so
    lasting: bool = False  # the next attempt would end in the same way, so none is made

    @property
    def whole(self) -> tuple[str, str]:
        """Return text and advice with all their clauses, as the documents show them."""

        def clause(match: re.Match[str]) -> str:
            return match[2] if "{mend}" in match[1] else match[1]

        return _CLAUSE.sub(clause, self.text), _CLAUSE.sub(clause, self.advice)


REASONS: dict[str, Reason] = {
    "succeeded": Reason(PROGRAM, False, "succeeded", final="succeeded"),
    "exit": Reason(PROGRAM, True, "exited[ with status {status}]", advice="see all that it printed: tm logs {job} {task}"),
    "signal": Reason(
        PROGRAM, True, "was killed[ by {name}]", _DEATH,
        advice="[{mend}|something outside sent it a signal, or it crashed: tm logs {job} {task}]",
    ),
    "out-of-memory": Reason(
        PROGRAM, True, "used [{used} of {limit}|more memory than it may][, {overhead} of it overhead,] and was killed[: {detail}]", _DEATH,
        advice="raise roles.{role}.resources.memory (--memory)[ (or overhead, which is {overhead} now, for our agent and what"
        " warm restarts keep; warm: false does without)], or set retry_memory",
    ),
    "cannot-go-on": Reason(  # the program says itself that the next attempt would end in the same way
        PROGRAM, True, "could not go on[: {detail}]", lasting=True,
        advice="mend that, and begin again: tm retry {job}",
    ),
    "command-not-found": Reason(
        PROGRAM, True, "[the command {command}|a command] was not found[ in: {line}]", lasting=True,
        advice="[no shell looks at it: write sh -c {shell}|check roles.{role}.command and environment]",
    ),
    "not-executable": Reason(
        PROGRAM, True, "[the command {command}|a command] cannot be executed[ in: {line}][: {detail}]", lasting=True,
        advice="[{mend}|chmod +x it, or name its interpreter]",
    ),
    "stdin-gone": Reason(
        USER, True, "has no stdin any more: what its command passed on was read before, or is lost", lasting=True,
        advice="begin again with the same input, or give it as a file",
    ),
    "stalled": Reason(PROGRAM, True, "made no progress[ for {seconds}]", _ERROR, advice="raise timeouts.stall if that is usual"),
    "hung-after-peer-finished": Reason(
        PROGRAM, True, "was still silent [{seconds} ]after a peer had finished", _CONSEQUENCE,
        advice="make all ranks end together, or raise timeouts.finish",
    ),
    "address-in-use": Reason(US, False, "found its port in use[: {detail}]"),
    "peers-unreachable": Reason(
        ENGINE, False, "could not reach [{peer}|a peer]", advice="check the network between the two hosts, or set network",
    ),
    "peer-failed": Reason(PROGRAM, False, "ended because a peer had failed", _CONSEQUENCE, final="killed"),
    "members-changed": Reason(ENGINE, False, "was stopped, its group taking in or leaving out members", _CONSEQUENCE, final="killed"),
    "prepare-failed": Reason(PROGRAM, True, "its prepare command exited[ with status {status}]", advice="run roles.{role}.prepare by hand"),
    "input-missing": Reason(USER, True, "its input [{name} ]cannot be read[: {detail}]", advice="[{mend}|check inputs]"),
    "staging-failed": Reason(
        ENGINE, True, "could not fetch its data[: {detail}]",
        advice="[{mend}|check inputs and the storage they are on]",
    ),
    "storage-unknown": Reason(
        USER, True, "can open no such storage[: {detail}]", lasting=True, advice="[{mend}|use a path, hdfs://, s3://, gs:// or az://]",
    ),
    "restore-failed": Reason(ENGINE, True, "could not restore its checkpoint[: {detail}]", advice="check checkpoint.url"),
    "upload-failed": Reason(
        ENGINE, True, "could not upload its output[: {detail}]",
        advice="[{mend}|check outputs and the storage they go to]",
    ),
    "output-unwritable": Reason(
        USER, True, "cannot write its output [{name}][: {detail}]", lasting=True,
        advice="[{mend}|check the permissions there, or set outputs.{name}.url]",
    ),
    "output-missing": Reason(
        PROGRAM, True, "wrote no output[ {name}]", advice="write to [./{name}|its path], or set outputs[.{name}].local",
    ),
    "commit-failed": Reason(
        ENGINE, True, "could not commit its output[: {detail}]",
        advice="[{mend}|check outputs and the storage they go to]",
    ),
    "commit-refused": Reason(
        USER, True, "may not commit its output[: {detail}]",
        advice="[{mend}|check outputs]; what it made is under _partial/{job} of the output",
    ),
    "devices-taken": Reason(
        ENGINE, False, "found its devices taken[ on {node}][: {detail}]", advice="see what computes on them there: nvidia-smi",
    ),
    "promise-broken": Reason(  # a row of engines.promises
        ENGINE, True, "its container is not what the job asks for[: {detail}]", lasting=True, advice="[{mend}|check {key}]",
    ),
    "disk-full": Reason(ENGINE, True, "ran out of disk[: {detail}]",
                        advice="[{mend}|free space, or use a larger place; on Kubernetes also raise the pod's limit ephemeral-storage]"),
    "no-python": Reason(USER, True, "found no Python >= 3.11[ at {path}][ on {node}]",
                        advice="name one: environment.path, archive or requirements; on Kubernetes environment.path or an image"),
    "start-timeout": Reason(ENGINE, True, "did not start within [{seconds}|timeouts.start][: {detail}]", advice="raise timeouts.start"),
    "agent-lost": Reason(US, False, "its supervisor died", _DEATH, final="lost"),
    "unreachable": Reason(ENGINE, False, "was out of reach[ for {seconds}]", _DEATH, final="lost"),
    "no-master": Reason(US, False, "was stopped since no master answered[ for {seconds}]", _DEATH, final="lost",
                        advice="raise timeouts.grace where masters are away longer"),
    "container-exited": Reason(ENGINE, False, "its container ended[ with status {status}]", _DEATH, final="lost"),
    "node-lost": Reason(ENGINE, False, "its node [{node} ]was lost[: {detail}]", _ENGINE_WORD, final="lost"),
    "preempted": Reason(ENGINE, False, "gave way[ to {by}]", _ENGINE_WORD, final="killed"),
    "disks-failed": Reason(ENGINE, False, "the disks of its node[ {node}] failed", _ENGINE_WORD, final="lost"),
    "localization-failed": Reason(ENGINE, True, "the engine could not set up its container[: {detail}]", _ENGINE_WORD),
    "killed-by-engine": Reason(ENGINE, False, "was killed by the engine[: {detail}]", _ENGINE_WORD, final="killed"),
    "killed-by-user": Reason(USER, False, "was killed[ by {sent}, sent][ by {by}][: {why}]", _ENGINE_WORD, final="killed"),
    "straggling": Reason(ENGINE, False, "was much slower than its peers[: {detail}]", _ENGINE_WORD, final="lost"),
    "not-needed": Reason(USER, False, "was stopped, the job being complete", _CONSEQUENCE, final="killed"),
    # Reasons of a job's end alone.
    "refused": Reason(ENGINE, False, "the engine will never grant [{task}|it][: {detail}]",
                       advice="do what it says, or ask for less; see tm doctor"),
    "dependency-failed": Reason(PROGRAM, False, "waited for [{role}|a role], which failed", _CONSEQUENCE),
    "no-progress": Reason(ENGINE, False, "made no progress over [{restarts}|many] restarts in a row that were not its fault", _ENGINE_WORD,
                          advice="the places it ran on keep failing: tm events {job}"),
    "restarts-exhausted": Reason(
        PROGRAM, True, "failed again after [{restarts}|many] restarts, and reported no progress beyond its best[; the last time it {last}]",
        _ENGINE_WORD, advice="see why it fails: tm logs {job} {task}; raise roles.{role}.restart.total where that is usual",
    ),
    "too-many-failures": Reason(PROGRAM, False, "[{failed} of {tasks}|too many] tasks failed, more than completion.failures allows"),
    "nothing-written": Reason(
        PROGRAM, False, "no task wrote a file of output [{name}|its output]",
        advice="write to [./{path}|its path]; if that is usual, set outputs[.{name}].required: none",
    ),
    "not-a-number": Reason(
        PROGRAM, False, "reported [{metric} = {value}|a metric that is nan or infinite][ at step {step}], and stop_on is nan",
        advice="see what made it so, like the learning rate or the data of that step: tm logs {job} {task}; or leave stop_on out",
    ),
    "framework-failed": Reason(
        USER, False, "its framework cannot be used[: {detail}]", _ENGINE_WORD,
        advice="install, correct or remove the package that adds it, and begin again: tm retry {job}; its traceback: tm logs {job} master",
    ),
    "job-timeout": Reason(USER, False, "ran longer than timeouts.job[, {seconds}]", advice="raise timeouts.job"),
    "storage-lost": Reason(
        ENGINE, False, "its event log could not be written[ for {seconds}][: {detail}]",
        advice="see that the job's storage can be written",
    ),
    "secrets-lost": Reason(US, False, "every process that held its secrets is gone", advice="submit it again: tm retry {job}"),
    "state-damaged": Reason(
        ENGINE, False, "a file of its state is damaged[: {path}]", _ENGINE_WORD,
        advice="see that its disk is sound, and begin again: tm retry {job}, or from its job file",
    ),
    "master-failed": Reason(US, False, "{masters} masters in a row died of it[: {detail}]",
                            advice="this is a fault of ours: tm logs {job} master"),
}  # fmt: skip


def is_reason(key: Any) -> bool:
    """Tell whether `key` is a known reason; an unknown one, of a newer agent, is kept as `container-exited`."""
    return isinstance(key, str) and key in REASONS


def is_lasting(key: str, figures: Mapping[str, Any]) -> bool:
    """Tell whether the next attempt would end in the same way, or would find nothing where this one found its input."""
    return REASONS[key].lasting or bool(figures.get(READ_STDIN))


def is_from_outside(key: str, figures: Mapping[str, Any]) -> bool:
    """Tell whether somebody killed the program: no program ends itself by these signals."""
    return key == "signal" and figures.get("name") in ("SIGKILL", "SIGTERM")


def final_state(key: str) -> str:
    """Return the final state of a task that fails for good by this reason: failed, or lost."""
    reason = REASONS.get(key)
    return reason.final if reason is not None and reason.final in ("failed", "lost") else "failed"


def words(key: str, figures: Mapping[str, Any]) -> str:
    """Return the reason in words, e.g. "used 512 MiB of 256 MiB and was killed"."""
    reason = REASONS.get(key)
    text = key if reason is None else _fill(reason.text, figures)
    return (
        f"{text}, and had read from its stdin, which cannot be given to it again" if figures.get(READ_STDIN) else text
    )


_OWN_SUBJECT = ("its ", "the ", "a ", "every ")  # how reasons begin that are whole sentences


def sentence(subject: str, text: str) -> str:
    """Say who ended by a reason in words: "worker:0 exited with status 1", but "worker:0: its node n1 was lost"."""
    return f"{subject}: {text}" if text.startswith(_OWN_SUBJECT) else f"{subject} {text}"


def advice(key: str, figures: Mapping[str, Any]) -> str:
    """Return advice to the user on the reason, or ""."""
    reason = REASONS.get(key)
    return "" if reason is None else _fill(reason.advice, figures)


_CLAUSE, _FIGURE = re.compile(r"\[([^]|]*)\|?([^]]*)\]"), re.compile(r"\{(\w+)\}")


def _fill(text: str, figures: Mapping[str, Any]) -> str:
    """Fill in the figures. A clause `[with|without]` gives its first part where all figures of that are known, else the second."""

    def clause(match: re.Match[str]) -> str:
        has_figures = all(figures.get(name) not in (None, "") for name in _FIGURE.findall(match[1]))
        return match[1] if has_figures else match[2]

    return _CLAUSE.sub(clause, text).format_map(_Figures(figures))


class _Figures(dict[str, Any]):
    """Figures as people read them: bytes and seconds by their names; a missing one in capitals, as in `tm logs JOB TASK`."""

    def __getitem__(self, key: str) -> str:
        value = super().get(key)
        if value is None:
            return key.upper()
        if key in ("used", "limit", "needed", "free", "overhead") and isinstance(value, int | float):
            return format_bytes(int(value))
        if key == "seconds" and isinstance(value, int | float):
            return format_seconds(value)
        return str(value)

    __missing__ = __getitem__
