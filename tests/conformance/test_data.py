"""Data in and out, by the bytes that are there in the end."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import pytest
from conformance.engines import Engine, python, role, workers
from waiting import until

from trainmaster.core.errors import BadInput
from trainmaster.runtime.formats import recordio
from trainmaster.runtime.formats.crc32c import masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame

READ_SHARDS = python("""
    from trainmaster import runtime
    for line in runtime.shards("train"):
        print("record", line, flush=True)
""")


def records(engine: Engine, files: int = 5, lines: int = 20) -> list[str]:
    """Some files of lines under data/; all lines."""
    written = []
    for number in range(files):
        mine = [f"{number}-{line}-{'x' * (line % 7)}" for line in range(lines + number)]
        engine.put(f"data/part-{number}.txt", "".join(f"{line}\n" for line in mine))
        written += mine
    engine.put("data/_SUCCESS", "")
    engine.put("data/.hidden", "hidden\n")
    return written


def outputs(found: dict[str, bytes]) -> dict[str, bytes]:
    """What an output holds beside the file that lists it, which must be right."""
    success = json.loads(found.pop("_SUCCESS"))
    listed = {file["path"]: file["size"] for task in success["tasks"].values() for file in task["files"]}
    assert listed == {name: len(content) for name, content in found.items()}
    return found


# -- inputs --


def test_downloaded_files_are_split_over_the_tasks(engine: Engine) -> None:
    written = records(engine)
    job = engine.submit(
        workers("ls train; cat train/*", 2), inputs={"train": {"url": engine.place("data"), "as": "download"}}
    )
    job.succeeded()
    seen = [[line for line in job.lines(task) if line.startswith("part-")] for task in ("worker:0", "worker:1")]
    assert sorted(seen[0] + seen[1]) == [f"part-{number}.txt" for number in range(5)]
    assert all(seen)
    read = [line for task in ("worker:0", "worker:1") for line in job.lines(task) if not line.startswith("part-")]
    assert sorted(read) == sorted(written)


def test_every_task_may_have_all(engine: Engine) -> None:
    written = records(engine)
    inputs = {"train": {"url": engine.place("data/*.txt"), "split": "whole", "local": "in/here"}}
    job = engine.submit(workers("cat in/here/*; echo at $TRAINMASTER_INPUT_TRAIN", 2), inputs=inputs)
    job.succeeded()
    for task in ("worker:0", "worker:1"):
        *lines, place = job.lines(task)
        assert sorted(lines) == sorted(written)
        assert place.endswith("/in/here")


def test_equal_names_in_several_folders_do_not_collide(engine: Engine) -> None:
    for folder in ("a", "b"):
        engine.put(f"data/{folder}/part.txt", f"of {folder}\n")
    job = engine.submit(
        workers("find train -type f | sort | xargs cat"), inputs={"train": {"url": engine.place("data")}}
    )
    job.succeeded()
    assert job.lines() == ["of a", "of b"]


@pytest.mark.needs("local-data")
def test_a_list_of_urls(engine: Engine) -> None:
    written = records(engine)
    program = python("""
        import json, os
        for url in json.loads(os.environ["INPUT_FILE_LIST"])["train"]:
            print(open(url).read(), end="")
    """)
    job = engine.submit(workers(program, 2), inputs={"train": {"url": engine.place("data"), "as": "list"}})
    job.succeeded()
    assert sorted(job.lines("worker:0") + job.lines("worker:1")) == sorted(written)


def test_records_on_stdin(engine: Engine) -> None:
    written = records(engine)
    engine.put("data/zipped.txt.gz", gzip.compress(b"zipped 1\nzipped 2\n"))
    inputs = {"train": {"url": engine.place("data"), "as": "stream", "epochs": 2}}
    job = engine.submit(workers("cat", 2), inputs=inputs)
    job.succeeded()
    read = job.lines("worker:0") + job.lines("worker:1")
    assert sorted(read) == sorted([*written, "zipped 1", "zipped 2"] * 2)
    assert all(job.lines(task) for task in ("worker:0", "worker:1"))


def test_a_program_may_stop_reading(engine: Engine) -> None:
    engine.put("data/big.txt", "a line\n" * 500_000)
    job = engine.submit(workers("head -n 1"), inputs={"train": {"url": engine.place("data"), "as": "stream"}})
    job.succeeded()
    assert job.lines() == ["a line"]


def test_shards(engine: Engine) -> None:
    written = records(engine, 8, 50)
    job = engine.submit(workers(READ_SHARDS, 2), inputs={"train": {"url": engine.place("data"), "as": "shards"}})
    status = job.succeeded()
    read = [line.removeprefix("record ") for task in ("worker:0", "worker:1") for line in job.lines(task)]
    assert sorted(read) == sorted(written)
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert f"{len(written)} records" in audited.stdout
    assert status["shards"]["train"]["done"] == status["shards"]["train"]["total"]


def test_shards_of_recordio_files_are_each_counted_once_though_a_reader_dies(engine: Engine) -> None:
    written = set()
    for number in range(3):
        mine = [b"%d-%d\n\0\xff" % (number, record) for record in range(4000 + number)]
        with recordio.Writer(
            engine.folder / "part", compressor=("none", "gzip", "snappy")[number], chunk=2000
        ) as writer:
            for record in mine:
                writer.write(record)
        engine.put(f"data/part-{number}", (engine.folder / "part").read_bytes())
        written.update(mine)
    program = python("""
        import os, signal
        from trainmaster import runtime
        me = runtime.task()
        for number, record in enumerate(runtime.shards("train", batch=1), 1):
            print("record", record.hex(), flush=True)
            if me.attempt == 1 and number == 2000:
                runtime.barrier("both read")
                if me.index == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    """)
    source = {"url": engine.place("data"), "as": "shards", "format": "recordio", "epochs": 2, "shuffle": True}
    job = engine.submit(workers(program, 2), inputs={"train": source})
    status = job.succeeded()
    attempts = [("worker:0", 1), ("worker:1", 1), ("worker:0", 2)]
    read = [line.removeprefix("record ") for task, attempt in attempts for line in job.lines(task, attempt)]
    assert set(read) == {record.hex() for record in written}
    assert len(read) >= 2 * len(written), "each was used at least once an epoch"
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert f"{2 * len(written):,} records" in audited.stdout
    assert f"epoch 1: {len(written):,} records" in audited.stdout
    assert status["shards"]["train"]["done"] == status["shards"]["train"]["total"] > 6


def test_a_damaged_recordio_file_is_named_with_the_byte(engine: Engine) -> None:
    """One that was cut, when the job begins; one with a damaged chunk, when that is read, and set aside then."""
    with recordio.Writer(engine.folder / "part", chunk=2000) as writer:
        for _ in range(600):
            writer.write(bytes(100))
    content = (engine.folder / "part").read_bytes()
    engine.put("cut/part", content[:-9])
    engine.put("damaged/part", content[:30_000] + b"!" + content[30_001:])
    program = python("""
        from trainmaster import runtime
        for record in runtime.shards("train"):
            pass
    """)
    source = {"as": "shards", "format": "recordio", "poison": 2}
    job = engine.submit(workers(program), inputs={"train": {"url": engine.place("cut"), **source}})
    status = job.end()
    assert status["state"] == "failed"
    assert "cut/part" in str(status)
    assert "lacks its last 9 bytes" in str(status)
    job = engine.submit(workers(program), inputs={"train": {"url": engine.place("damaged"), **source}})
    job.succeeded()
    assert "damaged/part is damaged: the checksum of the chunk at byte 29,400 does not match" in "\n".join(
        job.lines("worker:0", 1)
    )
    audited = engine.tm("audit", job.id).stdout
    assert "damaged/part, bytes 16,800 to 33,600" in audited


def test_shards_of_other_formats_are_each_counted_once(engine: Engine) -> None:
    """Packed by gzip or not, which no file's name tells of TFRecord."""
    frames = b"".join(frame(b"frame %d\n" % number, masked_crc32c()) for number in range(300))
    engine.put("tfrecord/a", frames)
    engine.put("tfrecord/b", gzip.compress(frames))
    engine.put("csv/a.csv", "x,y\n" + "".join(f'{number},"a\nb"\n' for number in range(200)))
    engine.put("jsonl/a.jsonl", '{"x": 1}\n\n' * 5000)
    program = python("""
        from trainmaster import runtime
        for name in ("tfrecord", "csv", "jsonl"):
            print(name, [repr(record) for record in runtime.shards(name)][-1])
    """)
    formats = ("tfrecord", "csv", "jsonl")
    job = engine.submit(
        workers(program), inputs={name: {"url": engine.place(name), "as": "shards", "format": name} for name in formats}
    )
    job.succeeded()
    last = (repr(b"frame 299\n"), repr('199,"a\nb"'), repr('{"x": 1}'))
    assert job.lines() == [f"{name} {record}" for name, record in zip(formats, last, strict=True)]
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    for count in ("600 records", "200 records", "5,000 records"):
        assert count in audited.stdout


def test_batches_of_shards_are_counted_when_they_were_used(engine: Engine) -> None:
    written = records(engine, 8, 50)
    program = python("""
        import os, signal
        from trainmaster import runtime
        me = runtime.task()
        for number, batch in enumerate(runtime.shards("train").batches(16, shuffle=60, seed=me.attempt)):
            if me.attempt == 1 and number == 3:
                runtime.barrier("both read")
                if me.index == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            for record in batch:
                print("record", record, flush=True)
    """)
    job = engine.submit(workers(program, 2), inputs={"train": {"url": engine.place("data"), "as": "shards"}})
    job.succeeded()
    attempts = [("worker:0", 1), ("worker:1", 1), ("worker:0", 2)]
    read = {line.removeprefix("record ") for task, attempt in attempts for line in job.lines(task, attempt)}
    assert read == set(written), "each was used at least once"
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert f"{len(written)} records" in audited.stdout


def test_numbers_of_records_are_each_counted_once_though_a_reader_dies(engine: Engine) -> None:
    program = python("""
        import os, signal
        from trainmaster import runtime
        me = runtime.task()
        for number, record in enumerate(runtime.shards("train", batch=1), 1):
            print("record", record, flush=True)
            if me.attempt == 1 and number == 100:
                runtime.barrier("both read")
                if me.index == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
    """)
    source = {"url": "records://1000/40", "as": "shards", "epochs": 2, "shuffle": True}
    job = engine.submit(workers(program, 2), inputs={"train": source})
    status = job.succeeded()
    attempts = [("worker:0", 1), ("worker:1", 1), ("worker:0", 2)]
    read = [line.removeprefix("record ") for task, attempt in attempts for line in job.lines(task, attempt)]
    assert {*map(int, read)} == {*range(1000)}
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert "2,000 records" in audited.stdout
    assert status["shards"]["train"]["done"] == status["shards"]["train"]["total"] == 50


@pytest.mark.full
@pytest.mark.needs("frameworks", "local-data")
@pytest.mark.parametrize(
    "reading",
    [
        'torch_data.loader("train", 16, workers=2, shuffle=60, collate=list)',
        'tf_data.dataset("train", 16).as_numpy_iterator()',
    ],
    ids=["torch", "tensorflow"],
)
def test_frameworks_read_shards_that_are_leased(engine: Engine, reading: str) -> None:
    written = records(engine, 8, 50)
    program = python(f"""
        from trainmaster.runtime import {reading.partition(".")[0]}
        for batch in {reading}:
            for record in batch:
                print("record", record if isinstance(record, str) else record.decode(), flush=True)
    """)
    job = engine.submit(
        workers(program, 2, resources={"cores": 0.1, "memory": "2GiB"}),
        inputs={"train": {"url": engine.place("data"), "as": "shards"}},
    )
    job.succeeded()
    read = [
        line.removeprefix("record ")
        for task in ("worker:0", "worker:1")
        for line in job.lines(task)
        if line.startswith("record ")
    ]
    assert sorted(read) == sorted(written)
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert f"{len(written)} records" in audited.stdout


def test_a_shard_that_keeps_killing_its_readers_is_set_aside_and_named(engine: Engine) -> None:
    written = records(engine, 8, 50)
    engine.put("data/poison.txt", "bad\n")
    program = python("""
        import os, signal
        from trainmaster import runtime
        for line in runtime.shards("train"):
            if line == "bad":
                os.kill(os.getpid(), signal.SIGKILL)
            print("record", line, flush=True)
    """)
    job = engine.submit(workers(program, 2), inputs={"train": {"url": engine.place("data"), "as": "shards"}})
    status = job.succeeded()
    assert status["restarts"] == 3
    (loss,) = [loss for loss in status["losses"] if loss["kind"] == "shard"]
    assert (loss["kind"], loss["of"], os.path.basename(loss["path"])) == ("shard", "train", "poison.txt")
    figures = status["shards"]["train"]
    assert (figures["done"], figures["aside"]) == (figures["total"] - 1, 1)
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout
    assert f"{len(written)} records" in audited.stdout
    assert "poison.txt, bytes 0 to 4: " in audited.stdout
    assert "poison.txt, bytes 0 to 4: set aside, since worker:" in engine.tm("status", job.id).stdout
    assert "was set aside, since worker:" in engine.tm("events", job.id).stdout


@pytest.mark.needs("local-data")
def test_a_mounted_input_is_the_original(engine: Engine) -> None:
    engine.put("data/a.txt", "original\n")
    inputs = {"train": {"url": engine.place("data"), "as": "mount"}}
    program = "cat train/a.txt $TRAINMASTER_INPUT_TRAIN/a.txt; readlink -f train"
    job = engine.submit(workers(program, workdir="copy"), inputs=inputs)
    job.succeeded()
    assert job.lines() == ["original", "original", str((engine.folder / "data").resolve())]


@pytest.mark.needs("local-data")
def test_a_mounted_input_leaves_nothing_in_a_shared_directory(engine: Engine) -> None:
    """Jobs of one directory whose inputs have one name do not meet, and what has the name already stays."""
    for name in ("a", "b"):
        engine.write(f"{name}/text", f"of {name}\n")
    (engine.folder / "train").symlink_to("a")
    before = sorted(os.listdir(engine.folder))
    go, program = engine.folder / "go", "cat $TRAINMASTER_INPUT_TRAIN/text; while ! test -e go; do sleep 0.05; done"
    roles = workers(f"{program}; cat $TRAINMASTER_INPUT_TRAIN/text")
    jobs = [engine.submit(roles, inputs={"train": {"url": name, "as": "mount"}}) for name in ("a", "b")]
    for job, name in zip(jobs, ("a", "b"), strict=True):
        job.until_line(f"of {name}")
    go.touch()
    for job, name in zip(jobs, ("a", "b"), strict=True):
        job.succeeded()
        assert job.lines() == [f"of {name}"] * 2
    go.unlink()
    assert sorted(os.listdir(engine.folder)) == before
    assert os.readlink(engine.folder / "train") == "a"


@pytest.mark.needs("local-data")
@pytest.mark.parametrize("kind", ["download", "list", "stream", "shards"])
def test_an_input_that_matches_nothing_is_refused(engine: Engine, kind: str) -> None:
    engine.put("data/_SUCCESS", "")
    with pytest.raises(BadInput, match=r"matches no file[^$]*inputs\.train\.url: [^$]*data/\*\.csv"):
        engine.submit(workers("true"), inputs={"train": {"url": engine.place("data/*.csv"), "as": kind}})


def test_an_input_of_one_role(engine: Engine) -> None:
    engine.put("data/a.txt", "content\n")
    roles = {"worker": role("test ! -e train; echo none"), "reader": role("cat train/a.txt")}
    job = engine.submit(roles, inputs={"train": {"url": engine.place("data"), "to": ["reader"]}})
    job.succeeded()
    assert job.lines("reader:0") == ["content"]


# -- outputs --


@pytest.mark.brief
def test_outputs_of_every_task(engine: Engine) -> None:
    program = (
        'mkdir -p model/deep && echo of $TRAINMASTER_INDEX > model/deep/w.txt && echo b > "$TRAINMASTER_OUTPUT_MODEL/b"'
        " && ln -s /etc/passwd model/passwd && mkfifo model/pipe"
    )
    job = engine.submit(workers(program, 2), outputs={"model": {"url": engine.place("out")}})
    status = job.succeeded()
    assert outputs(engine.files("out")) == {
        "worker-0/deep/w.txt": b"of 0\n", "worker-0/b": b"b\n", "worker-1/deep/w.txt": b"of 1\n", "worker-1/b": b"b\n",
    }  # fmt: skip
    assert status["outputs"]["model"].endswith("/out")
    detail = "not stored: passwd (a link that leads out of the working directory), pipe (a named pipe)"
    assert {(event["task"], event["what"], event["detail"]) for event in job.told("trouble")} == {
        (task, "output model", detail) for task in ("worker:0", "worker:1")
    }


def test_the_output_of_one_task_flat(engine: Engine) -> None:
    program = "test $TRAINMASTER_INDEX = 1 || { mkdir here; echo weights > here/model.bin; }"
    job = engine.submit(
        workers(program, 2),
        outputs={"m": {"url": engine.place("out"), "from": "worker:0", "layout": "flat", "local": "here"}},
    )
    job.succeeded()
    assert outputs(engine.files("out")) == {"model.bin": b"weights\n"}


@pytest.mark.needs("local-data")
def test_an_output_that_cannot_be_written_any_more_is_told_before_the_program_starts(engine: Engine) -> None:
    """As a pod's mount cannot, of which submitting knows nothing."""
    blocking = {"command": f"touch {engine.folder}/results", "resources": {"cores": 0.01, "memory": "64MiB"}}
    roles = {"first": blocking, **workers(f"touch {engine.folder}/ran")}
    roles["worker"]["after"] = {"first": "succeeded"}
    job = engine.submit(roles, outputs={"m": {"url": str(engine.folder / "results/m"), "from": "worker"}})
    reason = job.failed("output-unwritable")
    assert f"cannot write its output m: {engine.folder}/results is not a directory" in reason["words"]
    assert not (engine.folder / "ran").exists()
    assert job.task("worker:0")["attempt"] == 1, "a next attempt would end so too"


def test_equal_names_in_a_flat_output_are_refused(engine: Engine) -> None:
    roles = workers("mkdir m; echo $TRAINMASTER_INDEX > m/same", 2, restart="never")
    job = engine.submit(roles, outputs={"m": {"url": engine.place("out"), "layout": "flat"}})
    reason = job.failed("commit-refused")
    assert "same" in reason["words"]
    assert "_SUCCESS" not in engine.files("out")


def test_a_streamed_output(engine: Engine) -> None:
    program = "for i in 1 2 3; do echo record $i of $TRAINMASTER_INDEX; echo log $i >&2; done"
    job = engine.submit(workers(program, 2), outputs={"out": {"url": engine.place("out"), "as": "stream"}})
    job.succeeded()
    found = outputs(engine.files("out"))
    lines = sorted(line for content in found.values() for line in content.decode().splitlines())
    assert lines == [f"record {i} of {index}" for i in (1, 2, 3) for index in (0, 1)]
    assert job.lines("worker:0") == ["log 1", "log 2", "log 3"]  # stdout is records alone


def test_a_failed_attempt_commits_nothing(engine: Engine) -> None:
    program = "mkdir m; echo attempt $TRAINMASTER_ATTEMPT > m/of-$TRAINMASTER_ATTEMPT; test $TRAINMASTER_ATTEMPT = 2"
    job = engine.submit(
        workers(program, restart={"scope": "task", "limit": 1}), outputs={"m": {"url": engine.place("out")}}
    )
    job.succeeded()
    assert b"attempt 2\n" in outputs(engine.files("out")).values()


def test_what_finished_tasks_committed_of_a_failed_job_is_set_apart(engine: Engine) -> None:
    go = engine.folder / "go"
    wait = f"while ! test -e {go}; do sleep 0.05; done; exit 1"
    program = f"mkdir m; echo of $TRAINMASTER_INDEX > m/w; test $TRAINMASTER_INDEX = 0 && exit; {wait}"
    roles = workers(program, 2, restart={"scope": "never"})
    job = engine.submit(roles, outputs={"m": {"url": engine.place("out")}})
    until(lambda: job.told("output-committed"), what="the first task's commit")
    go.touch()
    job.failed("exit")
    assert engine.files("out") == {f"_partial/{job.id}/worker-0/w": b"of 0\n"}


def test_an_output_that_exists_is_refused(engine: Engine) -> None:
    engine.put("out/worker-0/w", "old\n")
    with pytest.raises(BadInput, match=r"exists already[^$]*overwrite: true"):
        engine.submit(workers("true"), outputs={"m": {"url": engine.place("out")}})
    assert engine.files("out") == {"worker-0/w": b"old\n"}


def test_an_output_is_overwritten_where_that_is_said(engine: Engine) -> None:
    for content in ("first", "second"):
        program = f"mkdir m; echo {content} > m/w; echo {content} > m/{content}"
        engine.submit(workers(program), outputs={"m": {"url": engine.place("out"), "overwrite": True}}).succeeded()
        assert outputs(engine.files("out")) == {
            "worker-0/w": f"{content}\n".encode(), f"worker-0/{content}": f"{content}\n".encode(),
        }  # fmt: skip


def test_a_job_that_fails_leaves_the_output_that_it_would_have_replaced(engine: Engine) -> None:
    program = "mkdir m; echo {} of $TRAINMASTER_INDEX > m/w; {}"
    over = {"m": {"url": engine.place("out"), "overwrite": True}}
    engine.submit(workers(program.format("first", "true"), 2), outputs=over).succeeded()
    good = engine.files("out")
    go = engine.folder / "go"
    wait = f"test $TRAINMASTER_INDEX = 0 && exit; while ! test -e {go}; do sleep 0.05; done; exit 1"
    job = engine.submit(workers(program.format("second", wait), 2, restart={"scope": "never"}), outputs=over)
    until(lambda: job.told("output-committed"), what="the first task's commit")
    assert {name: content for name, content in engine.files("out").items() if name in good} == good
    go.touch()
    job.failed("exit")
    assert engine.files("out") == good | {f"_partial/{job.id}/worker-0/w": b"second of 0\n"}


def test_an_output_that_was_not_written_is_missed(engine: Engine) -> None:
    job = engine.submit(workers("true", restart="never"), outputs={"m": {"url": engine.place("out")}})
    assert "m" in job.failed("output-missing")["words"]


@pytest.mark.needs("submitters-place")
def test_what_lies_in_the_directory_is_no_output_and_no_checkpoint_of_the_job(engine: Engine) -> None:
    for name in ("m/by-hand", "ckpt/by-hand"):
        engine.write(name, "old\n")
    program = "ls -d ckpt/* 2>/dev/null; test $TRAINMASTER_INDEX = 1 || { mkdir m; echo 1 > m/w; }"
    job = engine.submit(
        workers(program, 2, restart="never"), outputs={"m": {"url": engine.place("out")}}, checkpoint=checkpointing()
    )
    assert "m" in job.failed("output-missing")["words"]
    assert job.lines("worker:0") == []
    found = engine.files("out")
    assert set(found) <= {f"_partial/{job.id}/worker-0/w"}


def test_a_save_while_it_runs(engine: Engine) -> None:
    go = engine.folder / "go"
    program = f"mkdir m; echo early > m/w; echo ready; while ! test -e {go}; do sleep 0.05; done; echo late > m/w"
    job = engine.submit(workers(program, 2), outputs={"m": {"url": engine.place("out")}})
    for task in ("worker:0", "worker:1"):
        job.until_line("ready", task)
        job.attempt(1, task)
    saved = engine.tm("save", job.id)
    assert saved.returncode == 0, saved.stderr
    saves = [content for name, content in engine.files("out").items() if "_saves/" in name and name.endswith("/w")]
    assert saves == [b"early\n", b"early\n"]
    go.touch()
    job.succeeded()
    assert engine.files("out")["worker-1/w"] == b"late\n"


# -- checkpoints --


def checkpointing(**more: Any) -> dict[str, Any]:
    return {"path": "ckpt", "every": "200ms", **more}


@pytest.mark.brief
def test_a_checkpoint_is_restored_before_the_next_attempt(engine: Engine) -> None:
    program = python("""
        import os, time
        os.makedirs("ckpt", exist_ok=True)
        if os.environ["TRAINMASTER_ATTEMPT"] == "1":
            open("ckpt/step.tmp", "w").write("41")
            os.rename("ckpt/step.tmp", "ckpt/step")
            print("written", flush=True)
            time.sleep(1000)
        print("restored", open("ckpt/step").read())
    """)
    job = engine.submit(workers(program, restart={"scope": "task", "limit": 2}), checkpoint=checkpointing())
    job.until_line("written")
    until(lambda: job.told("checkpoint-saved"), what="the set")
    os.kill(engine.process(job), 9)
    job.succeeded()
    assert job.lines("worker:0", 2) == ["restored 41"]


def test_the_program_may_say_when_it_checkpoints(engine: Engine) -> None:
    program = python("""
        import os, sys
        from trainmaster import runtime
        os.makedirs("ckpt", exist_ok=True)
        for step in range(1, 4):
            if os.environ["TRAINMASTER_ATTEMPT"] == "1":
                with runtime.checkpoint():
                    open("ckpt/step", "w").write(str(step))
        print("now", open("ckpt/step").read())
        sys.exit(os.environ["TRAINMASTER_ATTEMPT"] == "1")
    """)
    job = engine.submit(workers(program, restart={"scope": "task", "limit": 1}), checkpoint=checkpointing(every="1h"))
    job.succeeded()
    assert job.lines("worker:0", 2) == ["now 3"]
