"""The program `python -m trainmaster.zoo train|evaluate|predict`: load a model file, and do with it what the command line says.

The exit status is 0, 1 where training cannot go on, or 2 for a fault that the user can mend: then one error is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from ..ps.errors import ServerError
from ..runtime.reports import cannot_go_on
from . import model_file
from .errors import BadModel
from .flags import EVALUATE, TRAIN, parse
from .params import parse_params


def main(arguments: Sequence[str]) -> int:
    """Run the task that the arguments say, and return the exit status."""
    try:
        task, flags = parse(arguments)
        return _run(task, flags)
    except (BadModel, ServerError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if isinstance(error, BadModel):  # the same would come again, from whatever records
            cannot_go_on("; ".join(map(str.strip, str(error).splitlines())))
        return error.status


def _run(task: str, flags: dict[str, Any]) -> int:
    has_evaluation = task == TRAIN and bool(flags["validation_data"] or os.environ.get("TRAINMASTER_INPUT_VALIDATION"))
    model_params = parse_params(flags["model_params"], "model_params")
    reader_params = parse_params(flags["data_reader_params"], "data_reader_params")
    names = {part: flags[part] for part in model_file.DEFAULT_NAMES if part in flags}
    parts = model_file.load(
        flags["model_zoo"], flags["model_def"], task=task, has_evaluation=has_evaluation, names=names
    )

    from .models import wrapped

    model = wrapped(parts, model_params)

    def say(text: str) -> None:
        if flags["log_level"] in ("DEBUG", "INFO"):
            print(text, flush=True)

    if task == TRAIN:
        from .training import train

        return train(flags, model, reader_params, say)
    if task == EVALUATE:
        from .applying import evaluate

        return evaluate(flags, model, reader_params, say)
    from .applying import predict

    return predict(flags, model, reader_params, say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
