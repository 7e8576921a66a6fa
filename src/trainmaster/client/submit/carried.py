"""Inputs and outputs of this machine, for a job on a cluster: carried there, and back.

An input that names files of this machine is put into the submitter's place on the cluster, by content (`inputs/<digest>`), before the
job starts, and is read there; the same content is put there once. An output is committed to that place (`outputs/<number>/NAME`), and
whoever follows the job to its end brings it here, to where the job file said, `_SUCCESS` last; then it is removed there. Nothing is brought
of a job that did not succeed: its status says where its outputs are.

The job's `site.json` notes what is carried; from then on the job has the URLs on the cluster.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.jobs.places import URL, all_absolute, client_side, job_storage, site_of, storage_errors
from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.spec.job import HADOOP, Input, Job
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.log.documents.jobs import read_job
from trainmaster.log.storage import draft_of

if TYPE_CHECKING:
    from trainmaster.core.input.splits import File, Listing

LARGEST = 2 * 2**30  # bytes of an input that is carried without a question: more belongs on the cluster
_IN_PLACE = {
    "mount": "what is mounted",
    "follow": "what is followed",
}  # inputs that cannot be carried -> their subject in an error
_BROUGHT = "brought"  # in the job's directory: the names of the outputs that are here


def local_places(job: Job) -> dict[str, str | tuple[str, ...]]:
    """Return inputs.NAME, outputs.NAME -> URL of those that are paths of this machine. Raises BadInput for an input that is so in part."""
    urls: dict[str, str | tuple[str, ...]] = {f"outputs.{name}": output.url for name, output in job.outputs.items()}
    for name, source in job.inputs.items():
        paths = [url for url in source.urls if not URL.match(url)]
        if paths and len(paths) < len(source.urls):
            raise BadInput(
                f"the input {name} has paths of this machine and URLs", place=f"inputs.{name}.url: {paths[0]}",
                mend="put all of it on storage that the nodes reach (hdfs://, s3://), or make two inputs of it",
                anchor="not-on-the-cluster",
            )  # fmt: skip
        urls[f"inputs.{name}"] = source.url
    return {key: url for key, url in urls.items() if not URL.match(url if isinstance(url, str) else url[0])}


def carried_paths(job: Job, base: Path) -> dict[str, str | tuple[str, ...]]:
    """Return the same with absolute paths. `job`: as its user wrote it; `base`: the directory that its paths are relative to."""
    return {key: all_absolute(url, base) for key, url in local_places(job).items()}


def rerouted(job: Job, local: Iterable[str], engine: str) -> Job:
    """Return the job with URLs on the cluster in the place of those that are `local` (inputs.NAME, outputs.NAME). Raises BadInput where an
    input cannot be carried, or a path of an output is taken.
    """
    keys = set(local)
    if not keys:
        return job
    store, inputs, outputs = client_side(engine).store(job), dict(job.inputs), dict(job.outputs)
    for name in (name for name in inputs if f"inputs.{name}" in keys):
        inputs[name] = attrs.evolve(inputs[name], url=_place_of(inputs[name], store.inputs))
    if ours := {name: output for name, output in outputs.items() if f"outputs.{name}" in keys}:
        from trainmaster.data.checks import check_outputs

        check_outputs(attrs.evolve(job, outputs=ours))
        folder = f"{store.outputs}/{secrets.token_hex(6)}"
        outputs |= {name: attrs.evolve(output, url=f"{folder}/{name}") for name, output in ours.items()}
    return attrs.evolve(job, inputs=inputs, outputs=outputs)


def restored(job: Job, carried: Mapping[str, Any]) -> Job:
    """Return the job as it was before `rerouted`, by the noted paths."""
    inputs = {
        name: _with_urls(source, carried.get(f"inputs.{name}", source.url)) for name, source in job.inputs.items()
    }
    outputs = {
        name: attrs.evolve(output, url=carried.get(f"outputs.{name}", output.url))
        for name, output in job.outputs.items()
    }
    return attrs.evolve(job, inputs=inputs, outputs=outputs)


def _with_urls(source: Input, url: str | Sequence[str]) -> Input:
    return attrs.evolve(source, url=url if isinstance(url, str) else tuple(url))


def carry(job: Job, carried: Mapping[str, Any], engine: str) -> None:
    """Put the inputs where the job will read them. Raises BadInput where one has changed since, StorageFailed."""
    if any(key.startswith("outputs.") for key in carried):
        client_side(engine).store(job).private("outputs")
    for name, source in job.inputs.items():
        if (url := carried.get(f"inputs.{name}")) is not None:
            _put(_with_urls(source, url), source.location, client_side(engine).store(job).private("inputs"))


def bring_outputs(job: str, status: dict[str, Any]) -> dict[str, Any]:
    """Bring the outputs that belong on this machine; returns the final status. Raises StorageFailed, BadInput where a path is taken."""
    places = {
        key.removeprefix("outputs."): Path(path)
        for key, path in site_of(job).get("carried", {}).items()
        if key.startswith("outputs.")
    }
    if not places or status.get("state") != "succeeded":
        return status
    from trainmaster.core.spec.reading import job_from

    folder = job_storage(job)
    outputs = job_from(read_job(folder)).outputs
    with storage_errors("note what was brought", folder), (folder / _BROUGHT).open("a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)  # of two commands that follow the job one brings them
        note.seek(0)
        done = set(note.read().split())
        for name, place in places.items():
            if name not in done:
                _bring(outputs[name].url, place, job, outputs[name].overwrite)
                note.write(f"{name}\n")
                note.flush()
    return {**status, "outputs": {**status.get("outputs", {}), **{name: str(place) for name, place in places.items()}}}


def bringing(job: str, items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the items of `follow`, and bring the job's outputs before its end is yielded."""
    for item in items:
        yield {**item, "end": bring_outputs(job, item["end"])} if "end" in item else item


def _place_of(source: Input, inputs: str) -> str:
    listing = _listing_of(source)
    names = [listing.relative(file) for file in listing.files]
    folder = f"{inputs}/{_digest(listing)}"
    return f"{folder}/{names[0]}" if len(names) == 1 else folder


def _listing_of(source: Input) -> Listing:
    """Return an input's files. Raises BadInput where they cannot be carried."""
    from trainmaster.core.input.splits import visible
    from trainmaster.data.sources import list_input

    place = f"inputs.{source.name}.url: {source.location}"
    mend = "put it on storage that the nodes reach (hdfs://, s3://)"
    if source.as_ in _IN_PLACE or source.format.startswith(HADOOP):
        subject = _IN_PLACE.get(source.as_, "an input of a Hadoop format")
        raise BadInput(
            f"{subject} cannot be of this machine: the nodes do not see {source.location}", place=place, mend=mend,
            anchor="not-on-the-cluster",
        )  # fmt: skip
    listing = list_input(source)
    if listing.size > LARGEST:
        raise BadInput(
            f"the input {source.name} has {format_bytes(listing.size)} on this machine, and at most {format_bytes(LARGEST)} are "
            "brought to a cluster with the job", place=place, mend=mend, anchor="not-on-the-cluster",
        )  # fmt: skip
    if len(listing.files) > 1 and not all(
        visible(part) for file in listing.files for part in listing.relative(file).split("/")
    ):
        raise BadInput(
            f"the input {source.name} has files whose names begin with . or _, which are not brought to a cluster",
            place=place, mend=mend, anchor="not-on-the-cluster",
        )  # fmt: skip
    return listing


def _digest(listing: Listing) -> str:
    total = hashlib.sha256()
    for file in listing.files:
        with open(file.path, "rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        total.update(f"{listing.relative(file)}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:32]


def _put(source: Input, url: str, inputs: str) -> None:
    from trainmaster.data.store.stores import store_for
    from trainmaster.data.store.transfer import Flow, retried

    listing = _listing_of(source)
    digest = _digest(listing)
    store = store_for(inputs)
    if digest not in url:
        raise BadInput(
            f"the input {source.name} changed while it was submitted", place=f"inputs.{source.name}.url: {source.location}",
            mend="submit again", anchor="no-input",
        )  # fmt: skip
    flow = Flow(listing.size, None, None)

    def put_all(files: Sequence[File], folder: str) -> None:
        def put(file: File) -> None:
            target = f"{folder}/{listing.relative(file)}"
            retried("bring an input", f"{store.url}/{digest}", lambda: store.upload(file.path, target, flow.step), flow)

        flow.run(files, put, store.threads)

    if not store.renames:  # file by file; a submission that was killed is continued
        stored = {file.path: file.size for file in store.files(digest)}
        put_all(
            [file for file in listing.files if stored.get(f"{digest}/{listing.relative(file)}") != file.size], digest
        )
        return
    if store.exists(digest):
        return
    draft = draft_of(digest)
    try:
        put_all(listing.files, draft)
        if not store.exists(digest):  # of two processes that put the same, the second finds it there
            store.move(draft, digest)
    except FileExistsError:
        pass
    finally:
        store.remove(draft)


def _bring(url: str, place: Path, job: str, overwrite: bool) -> None:
    """Bring the files at `url` to `place`, then remove them at `url`."""
    from trainmaster.core.fold.saving import is_save
    from trainmaster.core.input.splits import Listing
    from trainmaster.data.staging import download, is_staged, let_go
    from trainmaster.data.store.stores import store_for
    from trainmaster.data.store.transfer import retried

    store = store_for(url)
    files = retried("look at an output", url, store.files)
    existing = (
        [name for name in os.listdir(place) if not is_save(name)] if place.is_dir() else [place][: place.exists()]
    )
    if existing and not overwrite:
        raise BadInput(
            f"{place} is there by now, so the output stays at {url}", place=str(place),
            mend=f"move it away, then: tm attach {job}", anchor="output-exists",
        )  # fmt: skip
    listing = Listing(f"{url}/", tuple(attrs.evolve(file, path=f"{url}/{file.path}") for file in files))
    print(f"bringing {place.name} ({format_bytes(listing.size)}) from the cluster", file=sys.stderr, flush=True)
    draft = place.parent / f".{place.name}.{job}"  # an interrupted download goes on at the next call
    with storage_errors("bring an output", place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if not is_staged(str(draft)):  # of a call that was interrupted while it put the files in place
            shutil.rmtree(draft, ignore_errors=True)
        download(listing, str(draft), store=store)
        let_go(str(draft))
        _put_in_place(draft, place)
    try:
        store.remove("")
    except (OSError, StorageFailed) as error:
        print(f"{url} could not be removed: {error}", file=sys.stderr, flush=True)


def _put_in_place(draft: Path, place: Path) -> None:
    """Move the files as a commit on this machine does: those that the earlier output's `_SUCCESS` lists give way, and all others stay."""
    from trainmaster.data.outputs import SUCCESS, listed
    from trainmaster.data.store.stores import LocalStore, remove_empty

    store, fresh = LocalStore(str(place)), LocalStore(str(draft))
    new = {file.path for file in fresh.files()}
    for path in listed(store) - new:
        store.remove(path)
        remove_empty(store, path)
    store.remove(SUCCESS)
    for path in sorted(new, key=lambda path: (path == SUCCESS, path)):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).replace(place / path)
    shutil.rmtree(draft)
