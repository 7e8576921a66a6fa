"""Another process makes two things ready that a job on a cluster needs, while the command that submits reads the job.

One is the job's certificate, which its master shows and each client knows: the code that makes it takes a tenth of a second to load. The
other is the state of all files of the runtime archive.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trainmaster.core.errors import BadInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_coming: tuple[int, BinaryIO] | None = None  # the process, and the pipe that it writes both to, a line each


def begin(engine: str) -> None:
    """Start the process that makes both, for a job on this engine. Called before there is any thread."""
    global _coming
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(ours)
            os.write(
                theirs, json.dumps(_certificate()).encode() + b"\n"
            )  # less than a pipe holds: the process waits for nobody
            os.write(theirs, json.dumps(_state(engine)).encode() + b"\n")
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    _coming = pid, os.fdopen(ours, "rb")


def certificate_and_key() -> tuple[str, str]:
    """Return a certificate of the job's own, signed by itself, and its key; PEM."""
    if _coming is None or not (line := _coming[1].readline()):
        return _certificate()
    certificate, key = json.loads(line)
    return certificate, key


def runtime(folder: Path, engine: str, without: Collection[str] = (), framework: EntryPoint | None = None) -> Path:
    """Return the runtime archive, below `folder`; called after `certificate_and_key`. `engine`: the one that `begin` was called for;
    `without` and `framework`: see `runtime_archive.archive`. Raises BadInput where a package is missing.
    """
    global _coming
    from trainmaster.engines.runtime_archive import archive

    if _coming is None:
        return archive(folder, without=without, engine=engine, framework=framework)
    (pid, pipe), _coming = _coming, None
    with pipe:
        line = pipe.readline()
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored nobody is waited for
        os.waitpid(pid, 0)
    known = json.loads(line) if line and not without and framework is None else ""
    return archive(folder, known, without, engine, framework)


def _state(engine: str) -> str:
    from trainmaster.engines.runtime_archive import files, state

    try:
        return state(files(engine=engine))
    except BadInput:  # `runtime` raises it again
        return ""


def _certificate() -> tuple[str, str]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trainmaster")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), secret.decode()
