"""`runtime.checkpoint`: the bracket around a checkpoint that a program writes itself, and a way to have its state saved for it."""

from __future__ import annotations

from .reports import begin_checkpoint, end_checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .states.saver import Loaded


class checkpoint:
    """`with checkpoint():` around the writing of a checkpoint, from the moment when its content is fixed to the one
    when its files are whole.

    Records that other processes read meanwhile are then known not to be in it, and half a set is never taken for a whole one.
    A program that leaves the writing to us uses `checkpoint.save` and `checkpoint.load` instead.
    """

    def __enter__(self) -> checkpoint:
        begin_checkpoint()
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        end_checkpoint(kind is None)

    @staticmethod
    def save(
        step: int,
        state: Mapping[str, Any],
        *,
        at: str = "",
        keep: int = 3,
        every: float = 10.0,
        rank: int | None = None,
    ) -> None:
        """Copy `state` into shared memory, and return. It is stored behind training, by a process of idle priority.

        `state` maps names to anything that has a state (modules and optimizers of PyTorch, models and optimizers of Keras), to
        tensors, arrays, numbers and texts, and to lists and dictionaries of them. `at`: a directory, or a URL that fsspec
        knows; without it the job's `checkpoint.path`, or `checkpoint` where there is none. The newest `keep` sets stay there.
        States that come within `every` seconds after one that was stored stay in memory, where a killed program's successor finds them;
        the newest is stored at the program's end, and at once where a warning says that the container will be taken back.
        Each program of a group calls this; only that of rank 0 does something. `rank`: this program's, where it knows better than its
        environment, as in elastic training. Raises TypeError for what cannot be
        saved. Where memory has too little room it warns once, and stores each state before it returns.
        """
        from .states.saver import saver_at

        saver_at(at).save(step, state, keep, every, rank)

    @staticmethod
    def load(*, into: Mapping[str, Any] | None = None, at: str = "", memory: bool | None = None) -> Loaded | None:
        """Return the newest whole state: a dictionary with its `step` and its `source`, "memory" or "stored". None: there is none.

        Modules, models and optimizers of `into` get what was saved under their names. A state in memory is taken where it is newer
        than what is stored. In a group it is taken only where torch.distributed is initialised: then each program of
        the group calls this, and all get what rank 0 finds. `memory=False`: take what is stored, and ask nobody.
        """
        from .states.saver import saver_at

        return saver_at(at).load(into or {}, memory)

    @staticmethod
    def wait() -> None:
        """Return once the newest state of each place is stored. Raises OSError where it cannot be."""
        from .states.saver import wait

        wait()
