"""Train a PyTorch model in rounds: members come and go, the program goes on. Importing this module imports torch.

    from trainmaster.runtime.elastic.torch_training import Training

    training = Training(model=model, optimizer=optimizer)       # waits for the other members, and takes their state
    for x, y in training.batches(loader):                       # a batch that is in no step comes again
        with training.step():
            loss_of(model(x), y).backward()

At the end of the block the gradients are averaged over the members, the optimizer steps, and the gradients are cleared. So all members have
the same parameters after each step. A step is complete once all its sums are there, and only then does anything of the state change. So
after a member's death the others have completed the same step, or some of them one more: those that lack it take the state of one that has
it. Their own batches of that step are in that state too. A step that nobody has completed is added up again, with the gradients that each
still has. Only a member that the others went on without computes its batch again.

Members without a batch take part with a weight of 0: the data of shards ends earlier for one than for another, and whoever waits for the
last shards of others must not keep them waiting. Nobody is done before everybody is.

Shards are reported as done with their steps: not before the sum is there, and at once when the next batch is asked for. To wait
for the next sum, which says that all have this one, would be worse: each death within a step would have the victim's last batch read again.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import inputs
from ..reports import progress
from .alike import Form
from .reader import IDLE, NOTHING_YET, Reader
from .rendezvous import Rendezvous
from .rounds import NO_STATE, STATE, Round
from .torch_groups import Group, Interrupted, Listener

_BUCKET = 32 * 1024 * 1024  # bytes that are summed by one collective
_TRIES = 3  # of forming a group where no round was broken

# The outcome of a batch: its gradients wait for more of the step's; the step is complete, here or by another member; it is to come again.
_ADDED, _COMPLETE, _AGAIN = "added", "complete", "again"


class Training:
    """The state that all members share, and the round that this process is in.

    `model` and `optimizer`, and by further names whatever is to be equal everywhere: anything with state_dict() and load_state_dict(), or
    with get_state() and set_state(). After the optimizer, a `scheduler` is stepped too, and a `scaler` is used and updated. `update`: what
    to call instead of all that, once the gradients are averaged. `batches_per_step`: so many batches make a step, whatever the number of
    members; 0: one of each member. `step`: the steps that a loaded checkpoint has completed. `backend`: gloo, or nccl, which is the default
    where the model is on a GPU.
    """

    def __init__(
        self, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer, update: Callable[[], None] | None = None,
        batches_per_step: int = 0, step: int = 0, name: str = "elastic", backend: str = "", **state: Any,
    ) -> None:  # fmt: skip
        if batches_per_step < 0 or step < 0:
            raise ValueError("batches_per_step and step are at least 0")
        self.model, self.optimizer = model, optimizer
        self.steps = step  # that are complete
        self._state = {"model": model, "optimizer": optimizer, **state}
        self._update, self._per_step = update or self._step_all, batches_per_step
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                "the optimizer has parameters that are not of the model: nobody would average their gradients"
            )
        self._sums = step  # that are complete: of steps, and those by which members agree that there are no batches
        self.batches_done = 0  # batches of all members that are in the complete steps
        self._ends = 0  # of `batches`
        self._has_state = NO_STATE  # of the other members
        self._is_new = False  # whether the others had a round without this member before the one that it is in
        self._weight = 0  # the batches whose gradients are in this step so far
        self._outcome = ""
        self._device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._listener = Listener(backend or ("nccl" if self._device.type == "cuda" else "gloo"), self._device)
        self._rendezvous = Rendezvous(name, self._listener.heard)
        self._group: Group | None = None
        self._buffers = [buffer.clone() for buffer in model.buffers()]  # as they were after the last step
        self._alike = self._described()
        self._round = self._form()
        self._report_shards()

    @property
    def rank(self) -> int:
        """Return the rank of this process in its round. It may change after each step."""
        return self._round.rank

    @property
    def size(self) -> int:
        """Return the number of members of the round. It may change after each step."""
        return self._round.size

    @property
    def is_counted(self) -> bool:
        """Tell whether the last batch is in a step that is complete; otherwise it comes again, or waits for more of its step."""
        return self._outcome == _COMPLETE

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of so many, from 0: a newcomer begins with the one that the others are in."""
        while self._ends < count:
            before = self._ends
            yield before
            if self._ends == before:
                raise RuntimeError("an epoch is one `for batch in training.batches(loader):`, to its end")

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield batches until no member has any more. Each takes one `with training.step():`.

        A batch comes again where its step was interrupted. The next one is asked of the loader once the batch before is over. The loader
        is iterated in a thread of its own.
        """
        end, reader = self._ends, Reader(loader, self._use_device)
        ahead: deque[Any] = deque()  # batches that come before the next one of the reader
        current: list[Any] = []  # the batches of this step
        try:
            while self._ends == end:
                self._outcome = ""
                if current:
                    inputs.hold_reports()
                batch = NOTHING_YET if len(current) >= self._share() else ahead.popleft() if ahead else reader.next()
                if batch is NOTHING_YET:
                    self._complete(has_ended=reader.has_ended and not ahead)
                else:
                    current.append(batch)
                    yield batch
                    if not self._outcome:
                        raise RuntimeError("each batch takes one `with training.step():`")
                if self._outcome == _AGAIN:
                    ahead.extendleft(reversed(current))
                elif self._outcome == _COMPLETE and not ahead:  # those ahead are in no step yet
                    self._report_shards()
                if self._outcome != _ADDED:
                    current.clear()
        finally:
            reader.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Compute the gradients of one batch in the block. At its end they are averaged, and the model is brought on.

        If the round breaks meanwhile, this forms the next one with the members that are left, and the batch comes again. Exceptions of the
        block pass, except a RuntimeError of a broken round: a collective of the program's own raises that.
        """
        try:
            yield
        except RuntimeError:
            if not self._rendezvous.is_broken:
                raise
            self._recover(has_contributed=False)
            return
        self._weight += 1
        self._outcome = _ADDED
        if self._weight >= self._share():
            self._complete()

    def undo(self) -> None:
        """Drop what this member has of a step that is not complete: its gradients, and what its batches changed of the buffers."""
        self._set_buffers(self._buffers)
        self.optimizer.zero_grad(set_to_none=True)
        self._weight = 0

    def leave(self) -> None:
        """Leave the round before the program ends: this process trains no more. The others go on without it."""
        self._rendezvous.leave()
        self._drop_group()
        self._listener.close()

    # -- steps --

    def _share(self) -> int:
        """Return the number of batches that this member adds to a step. Those that are left over go around: all have their turn."""
        if not self._per_step:
            return 1
        turn = (self.rank + self._sums) % self.size
        return self._per_step // self.size + (turn < self._per_step % self.size)

    def _complete(self, has_ended: bool = False) -> None:
        """Add up what all members have of this step, and bring the model on."""
        has_gradient = [float(parameter.grad is not None) for parameter in self._parameters]
        while True:
            try:
                flags = [self._weight, self._rendezvous.is_wanted, not has_ended, *has_gradient]
                weight, newcomers, more, *used = self._average(flags)
                break
            except Interrupted:
                if not self._recover(has_contributed=True) or self._weight < self._share():
                    return
        if weight:
            for parameter, count in zip(self._parameters, used, strict=True):
                if not count:
                    parameter.grad = None  # of no member: the optimizer leaves it alone
            self.batches_done += round(weight)
            self._update()
            self.steps += 1
            progress(step=self.steps)
        elif not more:
            self._ends += 1
        else:
            time.sleep(IDLE)
        self.optimizer.zero_grad(set_to_none=True)
        self._sums, self._weight, self._outcome = self._sums + 1, 0, _COMPLETE
        self._keep_buffers()
        if newcomers:
            self._round = self._form(agreed=True)

    def _average(self, flags: list[float]) -> list[float]:
        """Average the gradients, and the buffers, over the batches of all members. Return the sums of the flags, first the batches."""
        if self._rendezvous.is_broken:
            raise Interrupted
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self._parameters
        ]
        if any(gradient.is_sparse for gradient in gradients):
            raise ValueError("gradients that are sparse are not summed: make the Embedding without sparse=True")
        buffers = list(self.model.buffers())
        weighted = [self._weighted(buffer) for buffer in buffers]
        total = torch.tensor(flags, dtype=torch.float64, device=self._device)
        buckets = _buckets([*gradients, *weighted])
        flat = [torch.cat([tensor.reshape(-1) for tensor in bucket]) for bucket in buckets]
        if self._group is not None:
            self._group.sum([total, *flat])
        sums: list[float] = total.tolist()
        if sums[0]:
            means: dict[int, torch.Tensor] = {}
            for bucket, sum_ in zip(buckets, flat, strict=True):
                parts = torch.split(sum_.div_(sums[0]), [tensor.numel() for tensor in bucket])
                means |= {id(tensor): part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)}
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = means[id(gradient)]
            for buffer, tensor in zip(buffers, weighted, strict=True):
                mean = means[id(tensor)]
                buffer.copy_(mean if mean.dtype == buffer.dtype else mean.round())
        return sums

    def _weighted(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a buffer times the batches of this member: without a batch 0, also where the buffer has infinities, as masks do."""
        if not (buffer.is_floating_point() or buffer.is_complex()):
            buffer = buffer.double()
        return buffer * self._weight if self._weight else torch.zeros_like(buffer)

    def _step_all(self) -> None:
        if (scaler := self._state.get("scaler")) is not None:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        if (scheduler := self._state.get("scheduler")) is not None:
            scheduler.step()

    def _use_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    # -- rounds --

    def _recover(self, has_contributed: bool) -> bool:
        """Form the next round. Return whether the gradients of this member are still to be added up; else they are undone."""
        attempted, own = self._sums + 1, [buffer.clone() for buffer in self.model.buffers()]
        self._set_buffers(self._buffers)  # as others may take them now
        self._round = self._form()
        is_used = has_contributed and not self._is_new
        if is_used and self._sums < attempted:
            self._set_buffers(own)
            self._outcome = _ADDED
            return True
        self.optimizer.zero_grad(set_to_none=True)
        self._weight = 0
        self._outcome = _COMPLETE if is_used and self._sums == attempted else _AGAIN
        return False

    def _form(self, agreed: bool = False) -> Round:
        """Join until there is a round in which all have the same state."""
        failures, self._is_new = 0, False
        while True:
            payload = self._payload(None if self._rendezvous.is_alone else self._listener.port)
            meeting = self._rendezvous.join(payload, self._sums, agreed=agreed)
            if meeting.is_too_late:
                self.leave()
                print("the other members have finished; there is nothing left to train", file=sys.stderr, flush=True)
                raise SystemExit(0)
            self._has_state = meeting.after_joining(self._has_state)
            self._is_new |= meeting.members[meeting.rank].new or self._has_state == NO_STATE
            self._drop_group()  # not before: others may not have all of the last sum yet
            try:
                self._group = self._listener.group(meeting)
                self._compare(meeting)
                self._take_state(meeting)
                return meeting
            except ValueError:
                self.leave()
                raise
            except Interrupted as error:
                agreed = False
                failures += not self._rendezvous.is_broken
                if failures > _TRIES:
                    raise RuntimeError(f"the members of {meeting} cannot be reached: {error}") from error

    def _payload(self, port: int | None) -> str:
        return json.dumps([port, self._has_state, self._alike.brief])

    def _described(self) -> Form:
        """Return what all members must have alike."""
        parameters, buffers = [*self.model.named_parameters()], [*self.model.named_buffers()]
        rows = [
            ("the number of parameters", str(len(parameters))),
            *((f'parameter {number} "{name}"', _kind(tensor) + ", frozen" * (not tensor.requires_grad))
              for number, (name, tensor) in enumerate(parameters)),
            *((f'buffer {number} "{name}"', _kind(tensor)) for number, (name, tensor) in enumerate(buffers)),
            ("the optimizer", type(self.optimizer).__name__),
            ("batches_per_step", str(self._per_step)),
            ("the state that Training was given", ", ".join(sorted(self._state))),
        ]  # fmt: skip
        return Form([(part, value, "") for part, value in rows])

    def _compare(self, meeting: Round) -> None:
        """Raise ValueError where this member differs in what it trains, Interrupted where another does that leaves."""
        group = self._group
        if group is None:
            return

        def add_up(content: bytearray) -> None:
            total = torch.frombuffer(content, dtype=torch.uint8).to(self._device)
            group.sum([total])
            content[:] = total.cpu().numpy().tobytes()

        _, have_state, briefs = zip(*(json.loads(member.payload) for member in meeting.members), strict=True)
        if not self._alike.is_alike(meeting.members, meeting.rank, briefs, have_state, add_up):
            raise Interrupted(f"a member of {meeting} differs in what it trains")

    def _drop_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _take_state(self, meeting: Round) -> None:
        """Have the members that are new, or behind, take the state of the one that is furthest."""
        # At the beginning all have completed no step, and yet have a state of their own: also in the round after one that was broken then.
        states = [json.loads(member.payload)[1] for member in meeting.members]
        rank = meeting.furthest(meeting.holders(states))
        me, source = meeting.members[meeting.rank], meeting.members[rank]
        if me is source:
            self._rendezvous.begin_state(
                meeting.number, self._sums, lost=meeting.begins_anew(states),
                restored=self._has_state == NO_STATE and self.steps > 0,
            )  # fmt: skip
        if self._group is None or (meeting.is_equal and min(states) == STATE):
            self._has_state = STATE
            return
        packed = self._packed() if me is source else torch.empty(0, dtype=torch.uint8, device=self._device)
        size = torch.tensor([packed.numel()], device=self._device)
        self._group.broadcast(size, rank)
        if me is not source:
            packed = torch.empty(int(size.item()), dtype=torch.uint8, device=self._device)
        for piece in torch.split(packed, _BUCKET):
            part = piece.clone()  # all that is kept where a member dies in the middle and gloo never ends it
            self._group.broadcast(part, rank)
            piece.copy_(part)
        if me is not source and (self._has_state != STATE or me.step < source.step):
            self._unpack(packed)
        self._has_state = STATE

    def _packed(self) -> torch.Tensor:
        state = {
            name: value.state_dict() if hasattr(value, "state_dict") else value.get_state()
            for name, value in self._state.items()
        }
        file = io.BytesIO()
        counts = {"sums": self._sums, "steps": self.steps, "batches": self.batches_done, "ends": self._ends}
        content = {**counts, "state": state}
        torch.save(
            content, file, _use_new_zipfile_serialization=False
        )  # the new format takes five times as long, for checksums
        return torch.frombuffer(file.getbuffer(), dtype=torch.uint8).to(self._device)

    def _unpack(self, packed: torch.Tensor) -> None:
        content = torch.load(io.BytesIO(packed.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
        for name, value in self._state.items():
            load = value.load_state_dict if hasattr(value, "load_state_dict") else value.set_state
            load(content["state"][name])
        self._sums, self.steps, self._ends = content["sums"], content["steps"], content["ends"]
        self.batches_done = content["batches"]
        self._keep_buffers()

    def _report_shards(self) -> None:
        """Report what this member has done: it is in the state of all that complete this step."""
        inputs.report_at_once("members", [self._rendezvous.name, self._round.number, self._sums])

    def _set_buffers(self, values: Iterable[torch.Tensor]) -> None:
        for buffer, value in zip(self.model.buffers(), values, strict=True):
            buffer.copy_(value)

    def _keep_buffers(self) -> None:
        for kept, buffer in zip(self._buffers, self.model.buffers(), strict=True):
            kept.copy_(buffer)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _buckets(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Divide tensors into lists of one type and at most so many bytes, in a fixed order."""
    buckets: dict[torch.dtype, list[list[torch.Tensor]]] = {}
    room: dict[torch.dtype, int] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if room.get(tensor.dtype, 0) < size:
            buckets.setdefault(tensor.dtype, []).append([])
            room[tensor.dtype] = _BUCKET
        buckets[tensor.dtype][-1].append(tensor)
        room[tensor.dtype] -= size
    return [bucket for of_type in buckets.values() for bucket in of_type]
