"""The first thing that runs in a pod: puts together what the job's Secrets hold, with nothing but the standard library.

An init container runs this file out of the job's ConfigMap with the Python of the user's image, once it has checked the digests of this
file and of `manifest.json` in the same folder. The manifest says which pieces make which file, with its digest; a file that is `unpacked`
becomes a folder. The secrets of the pod's role are mounted into the init container alone. It copies them to a directory in memory, from
which the agent deletes them once it has read them.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile
import zlib

LARGE = 2**30  # bytes that nobody takes a damaged file's word for


def main(manifest: bytes, pieces: str, home: str, secret: str = "", handover: str = "") -> None:
    """Put each file of the manifest at its place below `home`, and the file `secret` into the folder `handover`.

    Raises SystemExit with what is wrong.
    """
    if secret:
        os.makedirs(handover, exist_ok=True)
        with open(secret, "rb") as source, open(os.path.join(handover, os.path.basename(secret)), "wb") as target_file:
            os.fchmod(target_file.fileno(), 0o600)
            target_file.write(source.read())
    for entry in json.loads(manifest):
        content = b"".join(map(read, (os.path.join(pieces, piece) for piece in entry["pieces"])))
        if hashlib.sha256(content).hexdigest()[:32] != entry["digest"]:
            raise SystemExit(f"{entry['name']} is not what was submitted: its Secrets were changed")
        target = os.path.join(home, entry["name"])
        if entry["unpacked"]:
            unpack(content, target)
        else:
            with open(target, "wb") as file:
                file.write(content)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def unzipped(content: bytes) -> bytes:
    """Decompress a file of gzip in one buffer of its own size, for all of this counts against the memory of the user's container."""
    size = int.from_bytes(content[-4:], "little")  # RFC 1952, 2.3.1: of the last member, and mostly there is one
    result = zlib.decompress(content, 16 + zlib.MAX_WBITS, max(1, size)) if size < LARGE else b""
    return result if result and len(result) == size else gzip.decompress(content)


def unpack(content: bytes, target: str) -> None:
    """Unpack an archive of the submitter's, a tar or a zip, into a new folder."""
    os.makedirs(target, exist_ok=True)
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(target)
        return
    zipped = content.startswith(b"\x1f\x8b")
    if zipped:
        content = unzipped(content)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:" if zipped else "r:*") as archive:
        members = archive.getmembers()
        if zipped and all(map(is_plain, members)):
            write(members, content, target)
        elif hasattr(tarfile, "tar_filter"):
            archive.extractall(target, filter="tar")
        else:  # before Python 3.11.4
            for member in members:
                member.mode &= 0o755  # as the filter does
            archive.extractall(target)


def is_plain(member: tarfile.TarInfo) -> bool:
    """Tell whether a member is a file with nothing special about it, below where it is unpacked."""
    return member.isreg() and not member.issparse() and not {"", "..", "."} & set(member.name.split("/"))


def write(members: list[tarfile.TarInfo], content: bytes, target: str) -> None:
    """Write our runtime's thousand small files with a third of tarfile's work, for each start of a pod waits for them."""
    folders = set()
    for member in members:
        path = os.path.join(target, member.name)
        folder = os.path.dirname(path)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, member.mode & 0o755)
        try:
            rest = memoryview(content)[member.offset_data : member.offset_data + member.size]
            while rest:
                rest = rest[os.write(file, rest) :]
            os.utime(file, (member.mtime, member.mtime))
        finally:
            os.close(file)
