"""The task that a `feed` makes data for, and the facts that it gets about them: ElasticDL's `Mode` and `Metadata`."""

from __future__ import annotations

from collections.abc import Sequence


class Mode:
    """The modes of a `feed`: in PREDICTION there are no labels."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class Metadata:
    """Facts about records. `column_names`: of the values in a record, in their order; None where records have no columns."""

    def __init__(self, column_names: Sequence[str] | None = None) -> None:
        self.column_names = None if column_names is None else list(column_names)
