"""What can be known to be wrong with a job's outputs before anything starts."""

from __future__ import annotations

import secrets

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.job import HADOOP, Job, Output
from trainmaster.core.saving import is_save
from trainmaster.data.hdfs import HdfsStore
from trainmaster.data.outputs import PARTIAL, TEMPORARY, output_store
from trainmaster.data.stores import LocalStore, Store
from trainmaster.data.transfer import retried


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
        if (reason := _unwritable(store, probe)) is not None:
            raise BadInput(
                f"the output {name} cannot be written: {reason}",
                place=place,
                mend="check the permissions there, or give it another url",
                anchor="output-unwritable",
            )


def _check_format(output: Output, place: str) -> None:
    if output.format.startswith(HADOOP) or (output.options and output.format == "auto"):
        from trainmaster.data.hadoop_formats import check

        check(output)
    elif output.format != "auto":
        mend = "leave it out, or name an OutputFormat: hadoop:CLASS"
        raise BadInput(f"{output.format} is no format of an output", place=place, mend=mend, anchor="unknown-format")


def _unwritable(store: Store, probe: bool) -> str | None:
    """Why nothing can be written there."""
    if isinstance(store, LocalStore):
        return store.unwritable()
    if not probe:
        return None
    if isinstance(store, HdfsStore):
        return retried("look at an output", store.url, store.unwritable)
    name = f"{TEMPORARY}/{secrets.token_hex(8)}.probe"

    def trial() -> None:
        store.put(name, b"")
        store.remove(name)

    try:
        retried("write there", store.url, trial)
    except StorageFailed as error:
        return error.message
    return None
