"""The table of reasons: closed, complete, and readable with whatever figures are told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainmaster.agent.attempt.failure import failed
from trainmaster.core.errors import BadInput
from trainmaster.core.machine.failure_words import error_line
from trainmaster.core.machine.reasons import ENGINE, PROGRAM, REASONS, US, USER, advice, is_reason, words
from trainmaster.core.states import FINAL
from trainmaster.data.store.stores import store_for


@pytest.mark.parametrize("key", REASONS)
def test_a_row_is_whole(key: str) -> None:
    reason = REASONS[key]
    assert reason.fault in (PROGRAM, ENGINE, US, USER)
    assert reason.final in FINAL
    assert reason.text
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", key)


@pytest.mark.parametrize("key", REASONS)
def test_words_need_no_figures(key: str) -> None:
    assert not set("{[|]}?") & set(words(key, {}) + advice(key, {}))
    assert "  " not in words(key, {})


@pytest.mark.parametrize(
    ("key", "figures", "text"),
    [
        ("exit", {"status": 3}, "exited with status 3"),
        ("signal", {"name": "SIGKILL"}, "was killed by SIGKILL"),
        ("out-of-memory", {"used": 512 * 2**20, "limit": 256 * 2**20}, "used 512 MiB of 256 MiB and was killed"),
        (
            "out-of-memory",
            {"used": 2 * 2**30, "limit": 2**30, "overhead": 64 * 2**20},
            "used 2 GiB of 1 GiB, 64 MiB of it overhead, and was killed",
        ),
        ("stalled", {"seconds": 1800.0}, "made no progress for 30 m"),
        ("preempted", {"by": "a job of queue prod"}, "gave way to a job of queue prod"),
        ("killed-by-user", {"by": "ada"}, "was killed by ada"),
        ("killed-by-user", {"by": "ada", "why": "enough"}, "was killed by ada: enough"),
        ("killed-by-user", {}, "was killed"),
        ("exit", {}, "exited"),
        ("output-missing", {"name": "model"}, "wrote no output model"),
        ("command-not-found", {"line": "python t.py"}, "a command was not found in: python t.py"),
        ("command-not-found", {"command": "a {b} [c]", "shell": "x"}, "the command a {b} [c] was not found"),
        ("too-many-failures", {"failed": 3, "tasks": 4}, "3 of 4 tasks failed, more than completion.failures allows"),
    ],
)
def test_words(key: str, figures: dict[str, Any], text: str) -> None:
    assert words(key, figures) == text


def test_advice_names_what_it_is_about() -> None:
    assert advice("exit", {"job": "j-abcdef", "task": "w:0"}) == "see all that it printed: tm logs j-abcdef w:0"
    assert advice("exit", {}) == "see all that it printed: tm logs JOB TASK"


def test_a_line_for_the_shell_that_is_one_word_is_reported_so() -> None:
    figures = {"command": "seq 3 | tail -1", "shell": "'seq 3 | tail -1'"}
    assert advice("command-not-found", figures) == "no shell looks at it: write sh -c 'seq 3 | tail -1'"
    assert advice("command-not-found", {"role": "w"}) == "check roles.w.command and environment"


def test_a_reason_of_a_later_version_is_shown_as_it_is() -> None:
    assert words("swallowed-by-a-whale", {}) == "swallowed-by-a-whale"
    assert advice("swallowed-by-a-whale", {}) == ""
    assert not is_reason("swallowed-by-a-whale")
    assert not is_reason(None)


def test_fault_and_cost() -> None:
    """What nobody could have avoided by a better program costs nothing, but where trying again would not help either."""
    free = {key for key, reason in REASONS.items() if not reason.restart_costs}
    assert free >= {
        "preempted",
        "node-lost",
        "agent-lost",
        "unreachable",
        "container-exited",
        "disks-failed",
        "address-in-use",
    }
    assert not free & {
        "exit",
        "signal",
        "out-of-memory",
        "stalled",
        "command-not-found",
        "staging-failed",
        "start-timeout",
    }
    assert all(
        REASONS[key].fault != PROGRAM
        or key
        in ("succeeded", "peer-failed", "dependency-failed", "too-many-failures", "nothing-written", "not-a-number")
        for key in free
    )


def test_ranks_order_engine_deaths_errors_consequences() -> None:
    ranks = [REASONS[key].rank for key in ("preempted", "signal", "exit", "peer-failed")]
    assert ranks == sorted(set(ranks))


def test_a_storage_that_nothing_opens_is_not_tried_again() -> None:
    """The next attempt would find no other packages."""
    with pytest.raises(BadInput) as error:
        store_for("foo://somewhere/x")
    failure = failed("staging-failed", error.value)
    assert failure.reason == "storage-unknown"
    assert REASONS[failure.reason].lasting


TRACEBACK = ["step 9", "Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "    f()"]


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        ([*TRACEBACK, "FloatingPointError: loss is nan"], "FloatingPointError: loss is nan"),
        ([*TRACEBACK, "Stop: of two", "lines", "[W] destroy_process_group() was not called"], "Stop: of two"),
        (
            [*TRACEBACK, "KeyError: 'a'", "", "During handling of the above", *TRACEBACK, "ValueError: b"],
            "ValueError: b",
        ),
        ([f"[rank1]: {line}" for line in [*TRACEBACK, "RuntimeError: c"]], "RuntimeError: c"),
        (["    f()", "torch.OutOfMemoryError: CUDA", "bye"], "torch.OutOfMemoryError: CUDA"),
        (["fatal: no such file", "done"], "fatal: no such file"),
        ([*TRACEBACK, "ValueError: handled", "fatal: no space"], "fatal: no space"),
        ([*TRACEBACK, "E: the first line of two", "error: of the same"], "E: the first line of two"),
        (
            [
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "t.py"',
                "  | ExceptionGroup: two (2 sub-exceptions)",
                "  +-+---- 1 ----",
                "    | ValueError: a",
                "    +----",
            ],
            "ExceptionGroup: two (2 sub-exceptions)",
        ),
        (["\x1b[31mTraceback (most recent call last):\x1b[0m", "\x1b[1;35mValueError\x1b[0m: a"], "ValueError: a"),
        (["error rate 0.1", "validation error: small"], ""),
        ([], ""),
    ],
)
def test_the_line_that_says_what_went_wrong(tail: list[str], error: str) -> None:
    assert error_line("exit", tail) == error
    assert error_line("out-of-memory", tail) == "", "what was handled before has no part in it"
