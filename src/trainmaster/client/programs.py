"""The programs behind the quick links of a job, for `web.proxy`: where they are now, and the way there that the job's engine has.

Only the job's master says where. Its log may be in a storage that others write, and what is at an address there may be theirs.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import described
from trainmaster.client.ui.threads import in_thread
from trainmaster.client.watch.connect import live
from trainmaster.core.errors import TrainmasterError
from trainmaster.web.proxy import Program, Streams, security

_PORTS = {"http": 80, "https": 443}


def program_of(job: str, label: str) -> Program | None:
    """Return the program that serves the link `label`, None where none does now, or no master answers. Raises TrainmasterError."""
    link, master = described(job).links.get(label), live(job)
    if link is None or master is None:
        return None
    status = master.status()
    address = str(status.get("links", {}).get(label, ""))
    if not address:
        return None
    key = f"{link.role}:{link.index}"
    container = next((str(task["container"]) for task in status["tasks"] if task["task"] == key), "")

    async def connect() -> Streams:
        parts = urlsplit(address)
        server = parts.netloc.rpartition("@")[2] if parts.port else f"{parts.netloc}:{_PORTS[parts.scheme]}"
        try:
            line = await in_thread(backend_of(job).reach_task, job, container, server)
        except TrainmasterError as error:  # the user may not reach it, say
            raise ConnectionError(error.message) from error
        line.setblocking(False)
        context = security(address)
        return await asyncio.open_connection(
            sock=line, ssl=context, server_hostname=parts.hostname if context else None
        )

    return Program(address, connect)
