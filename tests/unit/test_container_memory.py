"""The counters of both versions of control groups, as files: what they hold was read off real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.agent.watch.container_memory import ContainerMemory

UNIFIED = {
    "memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill {}\n",
    "memory.peak": "134217728\n",
    "memory.max": "134217728\n",
}
LEGACY = {
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
    "memory/memory.max_usage_in_bytes": "134217728\n", "memory/memory.limit_in_bytes": "134217728\n",
}  # fmt: skip


@pytest.mark.parametrize("files", [UNIFIED, LEGACY], ids=["unified", "legacy"])
def test_a_kill_for_memory_is_reported_once(tmp_path: Path, files: dict[str, str]) -> None:
    def write(kills: int) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.format(kills))

    write(1)  # of an attempt before
    memory = ContainerMemory(tmp_path)
    assert memory.exceeded() is None
    write(2)
    assert memory.exceeded() == {"used": 128 * 2**20, "limit": 128 * 2**20}
    assert memory.exceeded() is None


def test_no_control_group_at_all(tmp_path: Path) -> None:
    assert ContainerMemory(tmp_path).exceeded() is None
