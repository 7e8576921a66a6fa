"""The first thing that runs in a pod: puts together what the job's Secrets hold, with nothing but the standard library.

An init container runs this file out of the job's ConfigMap with the Python of the user's image. `manifest.json` beside it says which
pieces make which file, with its digest; a file that is `unpacked` becomes a folder.
"""

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
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        if hasattr(tarfile, "tar_filter"):
            archive.extractall(target, filter="tar")
        else:
            archive.extractall(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
