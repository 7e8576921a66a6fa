"""Checks of a job's outputs that can be made before anything starts."""

from __future__ import annotations

import secrets

from trainmaster.core.errors import BadInput
from trainmaster.core.fold.saving import is_save
from trainmaster.core.spec.job import HADOOP, Job, Output
from trainmaster.data.outputs import PARTIAL, TEMPORARY, output_store
from trainmaster.data.store.stores import Store
from trainmaster.data.store.transfer import retried


def check_outputs(job: Job, probe: bool = True) -> None:
    """Refuse, before anything starts, an output whose place is taken or cannot be written. Raises BadInput.

    `probe`: write and remove a file where a store has no other way of telling; without it nothing is changed anywhere.
    """
    seen: dict[str, str] = {}
    for name, output in job.outputs.items():
        place = f"outputs.{name}.url: {output.url}"
        _check_format(output, f"outputs.{name}.format: {output.format}")
        store = output_store(output)
        if (other := seen.setdefault(store.url, name)) != name:
            raise BadInput(
                f"outputs {other} and {name} go to one place",
                place=place,
                mend="give each a url of its own",
                anchor="output-exists",
            )
        entries = retried("look at an output", store.url, lambda store=store: store.entries(""))  # type: ignore[misc]
        present = [entry.name for entry in entries if entry.name != PARTIAL and not is_save(entry.name)]
        if present and not output.overwrite:
            raise BadInput(
                f"the output {name} exists already: {', '.join(present[:3])}{', ...' if len(present) > 3 else ''}",
                place=place,
                mend="give it another url, or say overwrite: true",
                anchor="output-exists",
            )
        if (
            reason := _reason_unwritable(store, f"{TEMPORARY}/{secrets.token_hex(8)}.probe" if probe else "")
        ) is not None:
            raise BadInput(
                f"the output {name} cannot be written: {reason}",
                place=place,
                mend="check the permissions there, or give it another url",
                anchor="output-unwritable",
            )


def _check_format(output: Output, place: str) -> None:
    if output.format.startswith(HADOOP) or (output.options and output.format == "auto"):
        from trainmaster.data.formats.hadoop_formats import check

        check(output)
    elif output.format != "auto":
        mend = "leave it out, or name an OutputFormat: hadoop:CLASS"
        raise BadInput(f"{output.format} is not a format of an output", place=place, mend=mend, anchor="unknown-format")


def _reason_unwritable(store: Store, probe: str) -> str | None:
    return retried("look at an output", store.url, lambda: store.unwritable(probe))
