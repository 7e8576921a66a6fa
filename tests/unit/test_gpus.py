"""The GPUs of this machine, from `tm run` to the variables of programs: each task has its own, and one that asked for none sees none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gpus import tm

TWO = ("GPU-a", "GPU-b")
SEEN = "import os; print(*(os.environ.get(n, '-') or 'none' for n in ('RANK', 'LOCAL_RANK', 'CUDA_VISIBLE_DEVICES')))"
PROGRAM = ("--", sys.executable, "-c", SEEN)
NOTE = "note: the programs see no GPU of this machine, because the job asks for none; for one in each program "


def seen(*arguments: str, cwd: Path, ids: tuple[str, ...] | None = TWO, **environ: str) -> tuple[list[str], str]:
    """Return what the programs of a job have in their variables, sorted, and what `tm run` says beside it."""
    done = tm("run", *arguments, *PROGRAM, ids=ids, cwd=cwd, **environ)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize(("words", "gpus"), [((), 1), (("-n", "2"), 1), (("--processes", "2"), 2)])
def test_programs_of_a_job_that_asks_for_none_see_none_and_the_user_reads_how_to_ask(
    tmp_path: Path, words: tuple[str, ...], gpus: int
) -> None:
    lines, said = seen("--framework", "pytorch", *words, cwd=tmp_path)
    assert {line.split()[-1] for line in lines} == {"none"}
    assert said.count(f"{NOTE}set roles.worker.resources.gpus: {gpus} (--gpus {gpus})\n") == 1


def test_a_variable_of_the_users_own_stays_and_nothing_is_said(tmp_path: Path) -> None:
    assert seen(cwd=tmp_path, CUDA_VISIBLE_DEVICES="1")[0] == ["- - 1"]
    lines, said = seen("--env", "CUDA_VISIBLE_DEVICES=0", cwd=tmp_path)
    assert (lines, NOTE in said) == (["- - 0"], False)


def test_where_the_driver_shows_no_gpu_nothing_is_said(tmp_path: Path) -> None:
    assert NOTE not in seen(cwd=tmp_path, ids=())[1]


def test_without_a_driver_nothing_is_set_and_nothing_is_said(tmp_path: Path) -> None:
    lines, said = seen(cwd=tmp_path, ids=None)
    assert (lines, NOTE in said) == (["- - -"], False)


def test_each_task_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    lines, said = seen("-n", "2", "--gpus", "1", "--framework", "pytorch", cwd=tmp_path)
    assert (lines, NOTE in said) == (["worker:0 0 0 GPU-a", "worker:1 1 0 GPU-b"], False)


def test_a_process_for_each_gpu_is_one_for_all_of_the_machine(tmp_path: Path) -> None:
    for word in ("gpu", "per-gpu"):
        lines, _ = seen("--processes", word, "--framework", "pytorch", cwd=tmp_path)
        assert lines == ["worker:0.0 0 0 GPU-a,GPU-b", "worker:0.1 1 1 GPU-a,GPU-b"]
    assert seen("--processes", "gpu", "--gpus", "1", cwd=tmp_path)[0] == ["- - GPU-a"]


def test_a_dry_run_shows_how_many_they_are(tmp_path: Path) -> None:
    done = tm("run", "--dry-run", "--processes", "gpu", "--", "true", ids=TWO, cwd=tmp_path)
    assert all(text in done.stdout for text in ("processes: per-gpu", "gpus: 2", "2 GPUs")), done.stderr


def test_a_process_for_each_gpu_of_none_is_an_error(tmp_path: Path) -> None:
    done = tm("run", "--processes", "gpu", "--", "true", ids=(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[:3] == [
        "error: role worker runs a program for each GPU, and this machine has none  [no-gpu]",
        "  roles.worker.processes: per-gpu   (flag --processes)",
        "  say how many programs: roles.worker.processes: 2 (--processes)",
    ]


def test_a_process_for_each_gpu_of_a_cluster_needs_their_number(tmp_path: Path) -> None:
    for engine in ("kubernetes", "spark", "yarn"):
        done = tm("run", "--processes", "gpu", "--engine", engine, "--", "true", ids=TWO, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[:3] == [
            "error: role worker runs a program for each GPU, and does not say how many it has  [no-gpu]",
            "  roles.worker.processes: per-gpu   (flag --processes)",
            "  say how many: roles.worker.resources.gpus (--gpus)",
        ]


def test_another_command_line_says_it_in_its_own_words(tmp_path: Path) -> None:
    words = "--xlearning --app-type tensorflow --worker-num 1 --launch-cmd true --engine local"
    done = tm("submit", *words.split(), ids=TWO, cwd=tmp_path)
    assert f"{NOTE}use --set roles.worker.resources.gpus=1\n" in done.stderr, done.stdout
