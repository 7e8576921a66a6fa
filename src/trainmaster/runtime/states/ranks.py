"""A program's place in its group, as saving sees it: who saves, and how a state that one program has reaches the others.

Rank 0 is who the framework says: RANK of PyTorch, the chief of TF_CONFIG, else the first copy of the task with index 0.
"""

from __future__ import annotations

import json
import os
import sys

from .state_format import pack, unpack, view_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NOTHING, _FAILED = 0, -1  # instead of a header's length


class Shared:
    """The state that rank 0 sends to all; `state` is None where rank 0 has none."""

    def __init__(self, state: Any, step: int, source: str) -> None:
        self.state, self.step, self.source = state, step, source


def is_rank_zero() -> bool:
    """Tell whether this program saves for its group."""
    if rank := os.environ.get("RANK"):
        return int(rank) == 0
    if cluster := os.environ.get("TF_CONFIG"):
        config = json.loads(cluster)
        chief = next((role for role in ("chief", "master") if role in config.get("cluster", {})), "worker")
        task = config.get("task", {})
        if task and (task.get("type") != chief or int(task.get("index", 0)) != 0):
            return False
    return int(os.environ.get("TRAINMASTER_INDEX") or 0) == int(os.environ.get("TRAINMASTER_COPY") or 0) == 0


def is_grouped() -> bool:
    """Tell whether the state belongs to several programs, which must all begin from the same one."""
    if world := os.environ.get("WORLD_SIZE"):
        return int(world) > 1
    copies = int(os.environ.get("TRAINMASTER_COPIES") or 1)
    path = os.environ.get("TRAINMASTER_PEERS")
    if not path:
        return copies > 1
    with open(path, encoding="utf-8") as file:
        peers = json.load(file)
    return copies * sum(len(tasks) for tasks in peers.values()) > 1


def share(find: Callable[[], Any]) -> Shared | None:
    """Have all programs of torch.distributed's group get the state that `find()` returns in rank 0. None: there is no such group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() == 1:
        return None
    return _Broadcast(distributed).share(find)


class _Broadcast:
    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self._device = "cuda" if distributed.get_backend() == "nccl" else "cpu"

    def share(self, find: Callable[[], Any]) -> Shared:
        if self._distributed.get_rank() != 0:
            return self._receive()
        try:
            state = find()
        except BaseException:
            self._send_number(_FAILED)
            raise
        if state is None:
            self._send_number(_NOTHING)
            return Shared(None, 0, "")
        header, leaves = pack(state.step, dict(state))
        content = json.dumps({**header, "source": state.source}).encode()
        self._send_number(len(content))
        self._send(memoryview(bytearray(content)))
        for leaf in leaves:
            address, keep = leaf.source()
            if leaf.size:
                self._send(view_of(address, leaf.size))
            del keep
        return Shared(dict(state), state.step, state.source)

    def _receive(self) -> Shared:
        length = self._number(0)
        if length == _NOTHING:
            return Shared(None, 0, "")
        if length == _FAILED:
            raise RuntimeError("rank 0 could not load the state; see its log")
        content = memoryview(bytearray(length))
        self._send(content)
        header = json.loads(bytes(content))
        return Shared(unpack(header, lambda _, view: self._send(view)), header["step"], header["source"])

    def _send_number(self, number: int) -> None:
        self._number(number)

    def _number(self, number: int) -> int:
        import torch

        tensor = torch.tensor([number], dtype=torch.int64, device=self._device)
        self._distributed.broadcast(tensor, 0)
        return int(tensor.item())

    def _send(self, view: memoryview) -> None:
        """Send the bytes from rank 0, or receive them there."""
        import torch

        tensor = torch.frombuffer(view, dtype=torch.uint8)
        if self._device == "cpu":
            self._distributed.broadcast(tensor, 0)
            return
        remote = tensor.to(self._device)
        self._distributed.broadcast(remote, 0)
        tensor.copy_(remote)
