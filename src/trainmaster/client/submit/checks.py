"""Check everything about a job that can be known to be wrong before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from trainmaster.client.jobs.backend import Backend
from trainmaster.client.jobs.places import URL
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import HADOOP, INPUT_KEYS, Input, Job, idle_keys
from trainmaster.engines.promises import check_images
from trainmaster.engines.registry import engine, is_mount
from trainmaster.runtime.folders import reason_unwritable
from trainmaster.runtime.formats import is_table


def check(job: Job, where: Backend, described: Job, probe: bool = True) -> None:
    """Raise BadInput where the job can never run there. `described`: the job as its user wrote it; inputs that it names by paths of this
    machine are carried to a cluster later. `probe`: outputs may be tried by writing to them.
    """
    from trainmaster import frameworks

    for role in job.roles.values():
        frameworks.ports(job, role)
    for name in job.engines:
        engine(name, f"engines.{name}")
    if not engine(where.engine).capabilities.images:
        check_images(job, where.engine)
    where.check(job)
    _check_schemes(job)
    if where.on_this_machine:
        checkpoints = job.checkpoint.url if job.checkpoint is not None else ""
        for key, url in (("storage", job.storage), ("checkpoint.url", checkpoints)):
            if url:
                _check_folder(key, url, probe)
    _check_inputs(job, where, described)
    if job.outputs:
        from trainmaster.data.checks import check_outputs

        outputs = {name: output for name, output in job.outputs.items() if not is_mount(output.url, where.engine)}
        check_outputs(attrs.evolve(job, outputs=outputs), probe)


def _check_schemes(job: Job) -> None:
    """Raise BadInput where a URL of the job can be opened by nothing that is installed; the master would find out later."""
    urls = [
        ("tensorboard.logs", job.tensorboard.logs if job.tensorboard is not None else "")
    ]  # before the input made of it
    urls += [
        (f"inputs.{name}.url", url)
        for name, source in job.inputs.items()
        for url in source.urls
        if not (source.format.startswith(HADOOP) or is_table(url) or url.startswith("records:"))
    ]
    urls += [
        (f"outputs.{name}.url", target.url)
        for name, target in job.outputs.items()
        if not target.format.startswith(HADOOP)
    ]
    urls += [(f"{key}[{number}]", url) for key in ("cache", "archives") for number, url in enumerate(getattr(job, key))]
    urls += [
        ("storage", job.storage),
        ("checkpoint.url", job.checkpoint.url if job.checkpoint is not None else ""),
    ]
    for key, url in urls:
        if URL.match(url) and not url.lower().startswith(("file://", "local://")):
            from trainmaster.log.objects import check_scheme

            check_scheme(url, key)
    if URL.match(job.storage):
        _check_namenode(job.storage)


def _check_namenode(storage: str) -> None:
    """Raise BadInput where a storage is on an HDFS that this machine does not know: no command could read the job, end or remove it."""
    from trainmaster.log.dfs import is_dfs, resolve

    if not is_dfs(storage):
        return
    scheme, _, rest = storage.partition("://")
    try:
        resolve(f"{scheme.lower()}://{rest.partition('/')[0]}")
    except BadInput as error:
        error.place = f"storage: {storage}"
        raise


def _check_folder(key: str, url: str, probe: bool) -> None:
    """Raise BadInput where nothing can be kept at a path of this machine: a master would wait, and programs run without checkpoints."""
    from trainmaster.data.store.stores import local_path

    if (path := local_path(url)) is not None and (reason := reason_unwritable(path, is_tried=probe)):
        raise BadInput(
            f"nothing can be kept there: {reason}",
            place=f"{key}: {url}",
            mend="check the permissions there, or name another folder",
            anchor="storage-url",
        )


def _check_inputs(job: Job, where: Backend, described: Job) -> None:
    if not job.inputs:
        return
    from trainmaster.data.formats.tables import check as check_table
    from trainmaster.data.store.stores import local_path

    for name, source in job.inputs.items():
        check_table(source, where.on_this_machine)
        _check_keys(source)
        if is_mount(source.urls[0], where.engine) or is_table(source.location):
            continue
        if source.format.startswith(HADOOP) or source.options:
            from trainmaster.data.formats.hadoop_formats import check

            check(source)
            continue
        if source.format != "auto":
            from trainmaster.data.formats.formats import check_format

            check_format(source)
        # Others are listed by the master, which waits for nobody.
        is_carried = not where.on_this_machine and not URL.match(described.inputs[name].urls[0])
        is_here = all(map(local_path, source.urls)) and not is_carried
        if source.as_ == "mount" or source.location.startswith("records:") or is_here:
            from trainmaster.data.sources import list_input

            list_input(source)


def _check_keys(source: Input) -> None:
    """Raise BadInput for a key that does nothing for the `as` of its input: it was meant to do something."""
    for key in idle_keys(source):
        ways = [way for way, keys in INPUT_KEYS.items() if key in keys]
        raise BadInput(
            f"{key} does nothing for an input as: {source.as_}", place=f"inputs.{source.name}.{key}",
            mend=f"leave it out; it acts on an input as: {' or '.join(ways)}", anchor="idle-key",
        )  # fmt: skip


def check_files(job: Job, base: Path) -> None:
    """Raise BadInput where a file or a jar that is named is not there, though this engine may ship none."""
    for source in job.files:
        path = source.partition("#")[0]
        if not any(os.path.lexists(base / os.path.expanduser(name)) for name in (source, path)):
            raise _missing(path, f"files: {source}", base)
    for kind, tables in (("inputs", job.inputs), ("outputs", job.outputs)):
        for name, table in tables.items():
            for jar in (jar.strip() for jar in table.options.get("jars", "").split(",")):
                if jar and not URL.match(jar) and not (base / jar).is_file():
                    raise _missing(f"the jar {jar}", f"{kind}.{name}.options.jars: {jar}", base)


def archive_path(archive: str, base: Path) -> str:
    """Return an entry of `archives`, PATH#NAME, with its absolute path. Raises BadInput where that file does not exist."""
    path, mark, name = archive.partition("#")
    if URL.match(path):
        return archive  # fetched where it is used
    file = base / os.path.expanduser(path)
    if not file.is_file():
        raise _missing(f"the archive {path}", f"archives: {archive}", base)
    return f"{file}{mark}{name}"


def _missing(subject: str, place: str, base: Path) -> BadInput:
    return BadInput(f"{subject} does not exist", place=place, mend=f"it is looked for in {base}", anchor="no-file")
