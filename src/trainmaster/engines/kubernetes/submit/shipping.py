"""Ship files of the submitter's machine to the pods of a job, in immutable Secrets that are named by their content.

A file is cut into pieces of 900 KiB, for an object may hold one MiB. A piece is there once for all jobs that have the same: it is owned by
the Secret of each, so the cluster removes it with the last of them. A piece that is being removed just then is
waited for, and made anew.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.engines.contract import Shipped
from trainmaster.engines.kubernetes.container.entry import Piece
from trainmaster.kube.client import Client
from trainmaster.kube.errors import ApiError, Conflict, NotFound
from trainmaster.kube.kinds import SECRETS

PIECE = 900 * 1024
MOST = 32 * 2**20
REMOVED_WITHIN = 30.0  # s that an object that is being removed may be there


def read(files: Sequence[Shipped]) -> list[tuple[Piece, bytes]]:
    """Read the files as they will be shipped, with their contents. Raises BadInput where they are more than Secrets are for."""
    pieces = []
    for file in files:
        content = file.path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        names = tuple(f"trainmaster-{digest}-{number}" for number in range(max(1, -(-len(content) // PIECE))))
        pieces.append((Piece(file.name, digest, names, file.unpacked), content))
    if (total := sum(len(content) for _, content in pieces)) > MOST:
        sizes = ", ".join(f"{piece.name} {format_bytes(len(content))}" for piece, content in pieces)
        raise BadInput(
            f"what comes with the job is {format_bytes(total)}, and Secrets of a cluster hold {format_bytes(MOST)} of it: {sizes}",
            place="files", mend="put it into the image, or on a volume; ship less with files", anchor="files-too-large",
        )  # fmt: skip
    return pieces


async def put(client: Client, owner: Mapping[str, Any], files: Sequence[tuple[Piece, bytes]]) -> None:
    """Put the pieces into the client's namespace; each is then owned by the job's Secret, `owner` (an ownerReference), too."""
    async with asyncio.TaskGroup() as group:
        for piece, content in files:
            for number, name in enumerate(piece.secrets):
                group.create_task(_put(client, owner, name, content[number * PIECE : (number + 1) * PIECE]))


async def _put(client: Client, owner: Mapping[str, Any], name: str, content: bytes) -> None:
    """Share the piece where it is there already, else make it: making sends all of it before the server says that it is there."""
    clock = asyncio.get_running_loop().time
    until = clock() + REMOVED_WITHIN
    while True:
        refusal: ApiError | None = None
        try:
            if await _share(client, owner, name):
                return
        except ApiError as error:  # a right that is not needed where nothing is there
            refusal = error
        try:
            await client.create(SECRETS, _secret(owner, name, content), metadata=True)
            return
        except Conflict as error:
            if refusal is not None:
                raise EngineFailed(f"the Secret {name} cannot be shared: {refusal}", anchor="kubernetes") from refusal
            if clock() > until:
                message = f"the Secret {name} is being removed, and is not gone"
                raise EngineFailed(message, anchor="kubernetes") from error
        await asyncio.sleep(0.1)


def _secret(owner: Mapping[str, Any], name: str, content: bytes) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name, "ownerReferences": [dict(owner)],
            "labels": {"app.kubernetes.io/managed-by": "trainmaster", "trainmaster/part": "piece"},
        },
        "immutable": True, "type": "trainmaster/piece", "data": {"piece": base64.b64encode(content).decode()},
    }  # fmt: skip


async def _share(client: Client, owner: Mapping[str, Any], name: str) -> bool:
    """Make the Secret of this name ours too; return False where there is none, or it is being removed."""
    ours = {"metadata": {"ownerReferences": [dict(owner)]}}
    try:
        secret = await client.patch(SECRETS, name, ours, how="strategic", metadata=True)
    except NotFound:
        return False
    return "deletionTimestamp" not in secret["metadata"]
