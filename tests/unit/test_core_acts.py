"""What users do to running programs: who did it is on record, and each act reaches the agent once, whatever breaks meanwhile."""

from __future__ import annotations

import pytest
from scripted import Script, job, role

from trainmaster.core.machine.actions import Action, Order
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.core.machine.state import signal_fields
from trainmaster.core.machine.stimuli import Connected, Disconnected, MasterStarted, UserActed
from trainmaster.words.events import event_line


def running() -> Script:
    script = Script(job(worker=role(2)))
    script.start("worker:0", "worker:1")
    return script


def acts(script: Script) -> list[Action]:
    return [action for action in script.planned if isinstance(action, Order) and action.verb in ("signal", "dump")]


def test_signals_are_sent_in_their_order_and_once() -> None:
    script = running()
    for name in ("SIGUSR1", "SIGUSR2"):
        script.take(UserActed("signal", "worker:1", "user ada", name))
    assert acts(script) == [Order("worker:1", 1, 1, "signal", number) for number in ("1", "2")]
    assert signal_fields(script.task("worker:1"), "2") == {"signal": "SIGUSR2", "by": "user ada"}
    script.ask()
    script.take(UserActed("dump", "worker:1", "user bob"))
    assert acts(script) == [Order("worker:1", 1, 1, "dump", "3")]
    script.ask()
    assert acts(script) == []


def test_an_act_waits_for_an_agent_that_is_away_and_for_the_next_master() -> None:
    script = running()
    script.take(Disconnected("worker:0", 1))
    script.take(UserActed("signal", "worker:0", "user ada", "SIGUSR1"))
    assert acts(script) == []
    script.drive.state = load(dump(script.state))
    script.take(MasterStarted(2))
    script.take(Connected("worker:0", 1, {"node": "n", "attempt": 1}))
    assert acts(script) == [Order("worker:0", 1, 1, "signal", "1")]


@pytest.mark.parametrize("action", ["signal", "dump"])
def test_an_attempt_that_does_not_run_is_not_acted_on(action: str) -> None:
    script = Script(job(worker=role()))
    script.ready("worker:0")
    script.take(UserActed(action, "worker:0", "user ada", "SIGUSR1"))
    script.take(UserActed(action, "nobody:7", "user ada", "SIGUSR1"))
    assert (script.count("user-acted"), acts(script)) == (0, [])


def test_the_next_attempt_does_not_get_the_signal_of_the_last() -> None:
    script = running()
    script.take(Disconnected("worker:0", 1))
    script.take(UserActed("signal", "worker:0", "user ada", "SIGUSR1"))
    script.take(Connected("worker:0", 1, {"node": "n", "attempt": 1}))
    script.fail("worker:0")
    script.start("worker:0")
    assert (script.task("worker:0").attempt, acts(script)) == (2, [])


def test_of_many_acts_on_one_attempt_the_last_are_kept() -> None:
    script = running()
    for _ in range(100):
        script.take(UserActed("signal", "worker:0", "user ada", "SIGUSR1"))
        script.ask()
    assert [act[0] for act in script.task("worker:0").acts] == list(range(85, 101))


def test_a_restart_after_a_users_signal_costs_nothing() -> None:
    script = Script(job(worker=role(limit=0)))
    for _ in range(3):
        script.start("worker:0")
        figures = {"sent": "SIGTERM", "by": "user ada"}
        script.report("worker:0", "ended", reason="killed-by-user", figures=figures, signal=15, after=1.0)
    assert script.task("worker:0").attempt == 4
    assert "worker:0 was killed by SIGTERM, sent by user ada" in line(script, "incident")


@pytest.mark.parametrize(
    ("action", "detail", "words"),
    [
        ("signal", "SIGUSR1", "user {ada} sent SIGUSR1 to the program of worker:0"),
        ("dump", "", "user {ada} had the stacks of worker:0 written to its log"),
        ("cut", "10 s", "user {ada} cut the link to the agent of worker:0 for 10 s"),
    ],
)
def test_the_record_says_who_did_what(action: str, detail: str, words: str) -> None:
    script = running()
    script.take(UserActed(action, "worker:0", "user {ada}", detail))
    assert line(script, "user-acted").endswith(words)


def line(script: Script, kind: str) -> str:
    return event_line({"n": 1, "at": 0.0, "type": kind, **script.last(kind)})
