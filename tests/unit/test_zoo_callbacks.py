"""What callbacks count is kept in checkpoints, and nothing else of them."""

from __future__ import annotations

import json
from typing import Any

from trainmaster.zoo.callbacks import Callbacks, LearningRateScheduler, MaxStepsStopping


class Patience:
    """As Keras's ReduceLROnPlateau: it begins anew in `on_train_begin`, and counts the epochs that were no better."""

    def __init__(self, patience: int, delta: float = 1.0) -> None:
        self.patience, self.delta = patience, delta

    def on_train_begin(self, logs: Any = None) -> None:
        self.best: float | None = None
        self.wait, self.names, self.is_over = 0, ["loss"], False

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if self.best is None or logs["loss"] < self.best:
            self.best, self.wait = logs["loss"], 0
        else:
            self.wait += 1
        self.delta = -abs(self.delta)  # a parameter is the model file's, also where it changes
        self.is_over = self.wait >= self.patience


def callbacks_of(*callbacks: Any) -> Callbacks:
    return Callbacks(callbacks, object(), {})


def test_what_has_been_counted_is_taken_up() -> None:
    before = callbacks_of(Patience(3), MaxStepsStopping(9))
    assert before.begin(None)
    for loss in (0.5, 0.7, 0.6):
        before.call("on_epoch_end", 0, {"loss": loss})
    state = json.loads(json.dumps(before.state()))
    assert state[0]["numbers"] == {"best": 0.5, "wait": 2}
    assert state[1]["numbers"] == {}
    patient = Patience(4)  # the model file says so now
    after = callbacks_of(patient, MaxStepsStopping(9))
    assert after.begin(state)
    assert (patient.patience, patient.best, patient.wait) == (4, 0.5, 2)
    assert after.state() == state, "also before they have changed again"
    after.call("on_epoch_end", 0, {"loss": 0.8})
    after.call("on_epoch_end", 0, {"loss": 0.8})
    assert patient.is_over


def test_what_is_of_other_callbacks_is_not_used() -> None:
    patient = Patience(3)
    before = callbacks_of(patient)
    before.begin(None)
    before.call("on_epoch_end", 0, {"loss": 0.5})
    other = callbacks_of(LearningRateScheduler(float), patient)
    assert not other.begin(before.state())
    assert patient.best is None
