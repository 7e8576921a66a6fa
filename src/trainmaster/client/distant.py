"""A job on a cluster: what differs from one on this machine before its master runs there.

Its programs see nothing of this machine: each task has a directory of its own, filled from `files`, inputs and outputs are on storage that
every node reaches, and so is the job's own. What this machine keeps of it (`jobs/<id>`) is the job, its token, its certificate and where it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.places import SITE_FILE, client_of, job_storage, site_of, state_dir
from trainmaster.core.errors import BadInput
from trainmaster.core.job import COPIED, Job

if TYPE_CHECKING:
    from trainmaster.client.secrets import Values

CERTIFICATE = "certificate"
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def adapted(job: Job, engine: str) -> Job:
    """The job as it is on a cluster. Raises BadInput where it names a place of this machine alone."""
    for place, url in _places(job):
        if not _URL.match(url):
            raise BadInput(
                f"{url} is a path of this machine, and the nodes of {engine} do not see it", place=f"{place}: {url}",
                mend="put it on storage that they reach (hdfs://, s3://), or write file://PATH where every node has that path",
                anchor="not-on-the-cluster",
            )  # fmt: skip
    roles = {name: attrs.evolve(role, workdir=COPIED) for name, role in job.roles.items()}
    storage = job.storage or client_of(engine).store().jobs
    return attrs.evolve(job, roles=roles, storage=storage)


def _places(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((f"inputs.{name}.url", given.url) for name, given in job.inputs.items())
    yield from ((f"outputs.{name}.url", made.url) for name, made in job.outputs.items())
    yield from ((f"cache[{number}]", url) for number, url in enumerate(job.cache))
    if job.checkpoint is not None and job.checkpoint.url:
        yield "checkpoint.url", job.checkpoint.url
    if job.storage:
        yield "storage", job.storage


def start(engine: str, name: str, job: Job, values: Values, token: str) -> None:
    """Start the job's master there; `site.json` says afterwards where it is."""
    from trainmaster.core.reading import job_to

    certificate, key = certified()
    site = site_of(name)
    secret = {"token": token, "key": key, "secrets": values}
    told = client_of(engine).submit(name, job, job_to(job), site, secret, certificate, state_dir() / "runtime")
    folder = job_storage(name)
    (folder / CERTIFICATE).write_text(certificate)
    draft = folder / f".{SITE_FILE}"
    draft.write_text(json.dumps({**site, **told}))
    os.replace(draft, folder / SITE_FILE)


def certified() -> tuple[str, str]:
    """A certificate of the job's own, signed by itself, and its key; PEM. Whoever connects knows the certificate, not its name."""
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


def fate(job: str) -> str:
    """What the engine says became of the job's master: `running`, `ended`, `failed`, `killed`, or `unknown`."""
    site = site_of(job)
    found: Any = client_of(site["engine"]).fate_of(site["application"])
    return str(found)
