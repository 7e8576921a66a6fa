"""Archives of the submitter and remote files that jobs share: where programs find them, and how often they are fetched."""

from __future__ import annotations

import io
import os
import tarfile

from conformance.engines import Engine, workers


def packed(**files: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    return made.getvalue()


def test_archives_and_cached_files_are_in_the_working_directory(engine: Engine) -> None:
    engine.write("tools.tar.gz", packed(tool="echo tool"))
    engine.write("near", "#!/bin/sh\necho near\n")  # these two may be executed, whatever their modes
    engine.put("far/far", "#!/bin/sh\necho far\n")
    engine.put("far/vocabulary.txt", "words")
    engine.put("far/model.tar.gz", packed(weights="1.0"))
    engine.put("far/folder/deep/part", "2.0")
    far = engine.place("far")
    places = []
    for _ in range(2):
        job = engine.submit(
            workers(
                "sh tools/tool; ./near; ./far; cat vocabulary.txt m/weights data/deep/part; test -f from-far/weights; echo; readlink m",
                2,
                workdir="copy",
            ),
            archives=["tools.tar.gz", f"{far}/model.tar.gz#from-far"],
            cache=[f"{far}/far", f"{far}/vocabulary.txt", f"{far}/model.tar.gz#m", f"{far}/folder/#data"],
            files=["tools.tar.gz", "near"],
        )
        job.succeeded()
        for task in ("worker:0", "worker:1"):
            assert job.lines(task)[:4] == ["tool", "near", "far", "words1.02.0"]
            places.append(job.lines(task)[4])
    assert len(set(places)) <= engine.nodes, "fetched once to a node, for all tasks and jobs"
    if engine.name == "kubernetes":
        return  # a pod's cache is its own, and gone with it
    assert [name for name in os.listdir(os.path.dirname(places[0])) if not name.startswith(".")] == [
        os.path.basename(places[0])
    ]


def test_an_archive_that_leads_outside_is_refused(engine: Engine) -> None:
    engine.write("evil.tar.gz", packed(**{"../outside": "x"}))
    job = engine.submit(workers("true", workdir="copy", restart="never"), archives=["evil.tar.gz"])
    told = job.failed("staging-failed")
    assert "leads out of the archive" in told["words"]


def test_what_is_not_there_is_told(engine: Engine) -> None:
    job = engine.submit(workers("true", workdir="copy", restart="never"), cache=[f"file://{engine.folder}/missing.txt"])
    assert "missing.txt" in job.failed("staging-failed")["words"]
