"""The part of ElasticDL's elastic controllers that PyTorch's and Keras's have in common: `torch_controller`, `keras_controller`."""

from __future__ import annotations

import contextlib
import functools
import threading

from ..zoo.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .data_shards import DataShardService


class Controller:
    """The training of one model by all members. The last argument is the data shard service; a client of a master before it is not used."""

    def __init__(self, *arguments: Any) -> None:
        self.data_shard_service: DataShardService = arguments[-1]
        self.model: Any = None
        self.optimizer: Any = None
        self._training: Any = None
        self._computed = 0  # batches that the program has trained
        self._is_open = self._is_too_late = False
        self._turn = threading.RLock()  # of the thread that takes part in a step
        self.data_shard_service.idle = self._take_part

    def set_broadcast_model(self, model: Any) -> None:
        self.model = model

    def set_broadcast_optimizer(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def elastic_run(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return `func`, which trains on one batch, as a function that does this together with all members.

        It returns what `func` returned when it computed this batch last, and raises what it raises.
        """

        @functools.wraps(func)
        def train(*arguments: Any, **named: Any) -> Any:
            return self._train(functools.partial(func, *arguments, **named))

        return train

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Train in this block. At its end this member takes part until all others have come to theirs."""
        self._is_open = True
        try:
            yield
        except BaseException:
            self._is_open = False
            if self._training is not None:
                self._training.leave()
            with contextlib.suppress(
                Exception
            ):  # a dataset that reads ahead would wait on, and keep the program from its end
                self.data_shard_service.close()
            raise
        with self._turn:
            if self._is_too_late:
                raise SystemExit(0)
            if self.model is not None:
                self._finish()
            self._is_open = False

    # -- what a framework does --

    def _make_training(self) -> Any:
        """Join the other members, and take their state."""
        raise NotImplementedError

    def _train_batch(self, batch: Callable[[], Any]) -> Any:
        """Train on a batch together with the others, and report it. Return what `batch()` returned last."""
        raise NotImplementedError

    def _step_without_batch(self) -> bool:
        """Take part in a step of the others. Return False where there was none."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Take part until all members have come to their end. Records that this member did not report go to others."""
        raise NotImplementedError

    # -- below --

    def _train(self, batch: Callable[[], Any]) -> Any:
        with self._turn:
            result = self._train_batch(batch)
            self._computed += 1
            return result

    def _take_part(self) -> bool:
        """Take part in a step without a batch. Return False where the program may still be at one, or trains nothing yet."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            has_batch = self._computed < self.data_shard_service.given
            if not self._is_open or self._is_too_late or self.model is None or has_batch:
                return False
            return self._step_without_batch()
        except (
            SystemExit
        ):  # the others have finished: in a thread of TensorFlow's this would be an error, so `scope` ends the program
            self._is_too_late = True
            return False
        finally:
            self._turn.release()

    def _begun(self) -> Any:
        """Return the training; the first call joins the other members."""
        if self._training is None:
            if self.model is None or self.optimizer is None:
                raise BadModel(
                    "the controller does not know the model and its optimizer",
                    mend="call set_broadcast_model(model) and set_broadcast_optimizer(optimizer) before the first batch",
                )
            self._training = self._make_training()
        return self._training
