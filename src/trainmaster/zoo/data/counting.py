"""The program `python -m trainmaster.zoo.data.counting train|predict ...`: count the records of a model file's own reader.

It takes the command line of the worker that will read them, and prints the number as JSON in its last line. The submitter runs it, since a
job must know how many records its workers share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from .. import model_file
from ..errors import BadModel
from ..flags import TRAIN, parse
from ..params import parse_params
from ..reading import records_of, records_per_task


def main(arguments: Sequence[str]) -> int:
    """Print {records, size} and return the exit status: 2 for a fault that the user can mend, which is printed instead."""
    try:
        task, flags = parse(arguments)
        params = parse_params(flags["data_reader_params"], "data_reader_params")
        names = {part: flags[part] for part in model_file.DEFAULT_NAMES if part in flags}
        parts = model_file.load(flags["model_zoo"], flags["model_def"], task=task, has_evaluation=False, names=names)
        records = records_of("training" if task == TRAIN else "prediction", flags, parts, params)
    except BadModel as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.status
    print(json.dumps({"records": records, "size": records_per_task(flags)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
