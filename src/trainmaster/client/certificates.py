"""The certificate of a job on a cluster: its master shows it, and whoever connects knows it.

What makes one takes a tenth of a second to load. A command that submits has another process do that, while it reads the job.
"""

from __future__ import annotations

import contextlib
import json
import os

_coming: tuple[int, int] | None = None  # the process that makes one, and the descriptor it will come by


def begin() -> None:
    """Have one made. Called before there is any thread."""
    global _coming
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(ours)
            os.write(theirs, json.dumps(_made()).encode())  # less than a pipe holds: it waits for nobody
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    _coming = pid, ours


def certified() -> tuple[str, str]:
    """A certificate of the job's own, signed by itself, and its key; PEM."""
    global _coming
    if _coming is None:
        return _made()
    (pid, ours), _coming = _coming, None
    with open(ours, "rb") as made:
        content = made.read()
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored nobody is waited for
        os.waitpid(pid, 0)
    if not content:  # it was killed
        return _made()
    certificate, key = json.loads(content)
    return certificate, key


def _made() -> tuple[str, str]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trainmaster")]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), secret.decode()
