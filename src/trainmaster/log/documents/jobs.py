"""The documents of a job's directory: `job.json`, the job as it was understood, and `site.json`, the facts of the submitter's machine.

The first lines of the job's log repeat the job, its engine and its user. So most commands go on where a document is damaged.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from trainmaster.core.errors import StorageFailed
from trainmaster.core.foreign import json_in
from trainmaster.host.places import CERTIFICATE_FILE, JOB_FILE, SITE_FILE, TOKEN_FILE
from trainmaster.log.documents.files import damaged, read
from trainmaster.log.reader import Reader, replay
from trainmaster.log.storage import LISTING, Damaged, LocalStorage, read_file

INPUTS = "inputs"  # the folder of what each input had when the job began
_TOKEN = re.compile("[0-9a-f]{64}")
_LAST_LINE = "-----END CERTIFICATE-----"


def read_job(directory: str | Path) -> dict[str, Any]:
    """Return the job of a directory; where `job.json` is damaged, as the job's log has it. Raises FileNotFoundError, Damaged."""
    try:
        return _read(directory, JOB_FILE)
    except Damaged:
        if job := _submitted(directory).get("job"):
            return dict(job)
        raise


def read_site(directory: str | Path) -> dict[str, Any]:
    """Return the facts of the submitter's machine. Raises FileNotFoundError, Damaged."""
    return _read(directory, SITE_FILE)


def known_site(directory: str | Path) -> dict[str, Any]:
    """Return the facts of the submitter's machine; {} where nothing is noted. Where `site.json` is damaged, return what the log in the
    directory knows: the engine and the user.
    """
    try:
        return read_site(directory)
    except FileNotFoundError:
        return {}
    except Damaged:
        return {name: value for name, value in _submitted(directory).items() if name in ("engine", "user")}


def read_token(directory: str | Path) -> str:
    """Return the token of a job, or what a damaged file holds of it: `check_token` tells. Raises FileNotFoundError."""
    return read_file(Path(directory, TOKEN_FILE)).decode(errors="replace").strip()


def check_token(directory: str | Path, token: str) -> None:
    """Raise Damaged where `token`, which was read in a job's directory, is not one of a job."""
    if not _TOKEN.fullmatch(token):
        raise _unreachable(Path(directory, TOKEN_FILE), token)


def read_certificate(directory: str | Path) -> str:
    """Return the certificate of a job's master. Raises FileNotFoundError, Damaged."""
    path = Path(directory, CERTIFICATE_FILE)
    certificate = read_file(path).decode(errors="replace").strip()
    if not certificate.endswith(_LAST_LINE):
        raise _unreachable(path, certificate)
    return certificate


def _unreachable(path: Path, content: str) -> Damaged:
    """Return the error about a file without which nobody is heard by the job's master."""
    mend = f"bring it back from a copy, or end the job: tm kill --force {path.parent.name}"
    return damaged(str(path), content.encode(), mend)


def check_whole(directory: str | Path) -> None:
    """Raise Damaged where a master that takes the job of a directory up would find a damaged document, and end, as would the next."""
    read_job(directory)
    read_site(directory)
    for path in sorted(Path(directory, INPUTS).glob("*.json")):
        content = read_file(path, LISTING)
        try:
            json_in(content)
        except ValueError:
            raise damaged(str(path), content, _mend(directory)) from None


def place_of(directory: str | Path) -> str:
    """Return the place of a job's storage: the job's directory, or a folder of its own under the place that `storage:` names."""
    try:
        storage = read_job(directory).get("storage")
    except Damaged:
        raise
    except OSError:  # not written yet, or not ours
        storage = None
    return f"{str(storage).rstrip('/')}/{Path(directory).name}" if storage else os.fspath(directory)


def _read(directory: str | Path, name: str) -> dict[str, Any]:
    return read(Path(directory, name), _mend(directory))


def _mend(directory: str | Path) -> str:
    return f"bring it back from a copy, or end the job (tm kill --force {Path(directory).name}) and submit it again from its job file"


def _submitted(directory: str | Path) -> dict[str, Any]:
    """Return the event of the log in a job's directory that has the job; {} where there is none."""
    try:
        events = replay(Reader(LocalStorage(directory)), json.loads)
        return next((event for event in events if event.get("type") == "submitted"), {})
    except (StorageFailed, AttributeError):
        return {}
