"""The first thing that runs in a pod: puts together what the job's Secrets hold, with nothing but the standard library.

An init container runs this file out of the job's ConfigMap with the Python of the user's image. `manifest.json` beside it says which
pieces make which file, with its digest; a file that is `unpacked` becomes a folder.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile


def main(boot: str, pieces: str, home: str) -> None:
    """Put each file of the manifest at its place below `home`. Raises SystemExit with what is wrong."""
    with open(os.path.join(boot, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    for one in manifest:
        content = bytearray()
        for piece in one["pieces"]:
            with open(os.path.join(pieces, piece), "rb") as file:
                content += file.read()
        if hashlib.sha256(content).hexdigest()[:32] != one["digest"]:
            raise SystemExit(f"{one['name']} is not what was submitted: its Secrets were changed")
        target = os.path.join(home, one["name"])
        if one["unpacked"]:
            unpack(bytes(content), target)
        else:
            with open(target, "wb") as file:
                file.write(content)


def unpack(content: bytes, target: str) -> None:
    """Unpack an archive of the submitter's, a tar or a zip, into a new folder."""
    os.makedirs(target, exist_ok=True)
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(target)
        return
    zipped = content.startswith(b"\x1f\x8b")
    if zipped:
        content = gzip.decompress(content)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:" if zipped else "r:*") as archive:
        members = archive.getmembers()
        if zipped and all(map(is_plain, members)):
            write(members, content, target)
        elif hasattr(tarfile, "tar_filter"):
            archive.extractall(target, filter="tar")
        else:
            archive.extractall(target)


def is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is a file with nothing special about it, below where it is unpacked."""
    return member.isreg() and not member.issparse() and not {"", "..", "."} & set(member.name.split("/"))


def write(members: list[tarfile.TarInfo], content: bytes, target: str) -> None:
    """Our own runtime is a thousand small files, of which tarfile makes three times the work: each start of a pod waits for it."""
    made = set()
    for member in members:
        path = os.path.join(target, member.name)
        folder = os.path.dirname(path)
        if folder not in made:
            os.makedirs(folder, exist_ok=True)
            made.add(folder)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, member.mode & 0o755)
        try:
            rest = memoryview(content)[member.offset_data : member.offset_data + member.size]
            while rest:
                rest = rest[os.write(file, rest) :]
            os.utime(file, (member.mtime, member.mtime))
        finally:
            os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
