"""The task that a `feed` makes data for, and the facts that it gets about them: ElasticDL's `Mode` and `Metadata`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Mode:
    """The modes of a `feed`: in PREDICTION there are no labels."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class Metadata:
    """Facts about records. `column_names`: of the values in a record, in their order; None where records have no columns. `column_dtypes`:
    types by name, which a reader of the model file's own may give.
    """

    column_dtypes: Mapping[str, Any] | None = None

    def __init__(
        self, column_names: Sequence[str] | None = None, column_dtypes: Mapping[str, Any] | None = None
    ) -> None:
        self.column_names = None if column_names is None else list(column_names)
        self.column_dtypes = column_dtypes
