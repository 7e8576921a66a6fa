"""A path that survives: a program that dies finds what it had saved, and what it read since is given out again."""

from __future__ import annotations

from conformance.engines import Engine, python, workers

TRAIN = """
    import os, pathlib, signal, time
    path = pathlib.Path("ckpt")
    begin = int((path / "step").read_text()) if path.exists() else 0
    print("began at", begin, "in", os.getcwd(), flush=True)
    for step in range(begin + 1, 11):
        path.mkdir(exist_ok=True)
        (path / "new").write_text(str(step))
        os.replace(path / "new", path / "step")
        print("step", step, flush=True)
        if step == 5 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
            while not os.path.exists(os.environ["GO"]):
                time.sleep(0.02)
            (path / "new").write_text("torn")
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_goes_on_from_its_newest_whole_set(engine: Engine) -> None:
    go = engine.folder / "go"
    job = engine.submit(
        workers(python(TRAIN), env={"GO": str(go)}),
        checkpoint={"path": "ckpt", "every": "200ms", "url": engine.place("sets")},
    )
    job.until_line("step 5")
    first = job.until_status(
        "a set with step 5", lambda status: status["checkpoint"] is not None and b"5" in engine.files("sets").values()
    )
    assert first["checkpoint"]["set"] >= 1
    go.write_text("")
    job.succeeded()
    assert job.task("worker:0")["attempt"] == 2
    began = job.lines(attempt=2)[0].split()
    assert int(began[2]) == 5
    assert began[-1] == job.lines(attempt=1)[0].split()[-1], "the same path"
    (ready,) = [event for event in job.told("ready") if event["attempt"] == 2]
    assert ready["restored"]["task"] == "worker:0"


READ = """
    import os, pathlib, signal, time
    from trainmaster import runtime
    path, seen = pathlib.Path("ckpt"), []
    if path.exists():
        seen = path.read_text().split()
        print("restored", len(seen), flush=True)
    first = runtime.task().attempt == 1
    for record in runtime.shards("train", batch=1):
        seen.append(record.strip())
        if first and len(seen) == 300:
            with runtime.checkpoint():
                path.write_text(" ".join(seen))
            print("saved", flush=True)
            while not os.path.exists(os.environ["GO"]):
                time.sleep(0.02)
        if first and len(seen) == 700:
            print("dies", flush=True)
            while not os.path.exists(os.environ["DIE"]):
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
    out = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_SEEN"])
    out.mkdir()
    (out / "records").write_text(" ".join(seen))
"""


def test_what_was_read_after_the_set_is_given_out_again(engine: Engine) -> None:
    lines = [f"record-{i:05}" for i in range(1000)]
    for i in range(10):
        engine.put(f"in/{i}.txt", "\n".join(lines[i * 100 : i * 100 + 100]) + "\n")
    go, die = engine.folder / "go", engine.folder / "die"
    job = engine.submit(
        workers(python(READ), env={"GO": str(go), "DIE": str(die)}),
        inputs={"train": {"url": engine.place("in"), "as": "shards"}},
        outputs={"seen": {"url": engine.place("seen")}},
        checkpoint={"path": "ckpt", "every": "200ms"},
    )
    job.until_line("saved")
    saved = job.until_status("a set", lambda status: status["checkpoint"] is not None)["shards"]["train"]["done"]
    go.write_text("")
    job.until_line("dies")
    job.until_status("shards done since the set", lambda status: status["shards"]["train"]["done"] > saved)
    die.write_text("")
    status = job.succeeded()
    assert job.task("worker:0")["attempt"] == 2
    assert job.lines(attempt=2)[0].startswith("restored")
    seen = engine.files("seen")["worker-0/records"].decode().split()
    assert sorted(set(seen)) == lines, "what the restored program had forgotten was given out again"
    assert job.told("rewound")
    audit = engine.tm("audit", job.id)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert status["shards"]["train"]
    kept = [entry for entry in job.entries("checkpoints") if entry.endswith(".json")]
    assert kept, "without a URL the sets are in the job's storage, which every node reaches"


def test_a_job_goes_on_from_what_an_earlier_one_kept(engine: Engine) -> None:
    """The same `checkpoint.url` is the same training: its newest set is put there before the first attempt."""
    program = 'mkdir -p ckpt; echo "begins at $(cat ckpt/step 2>/dev/null)"; echo "$STEP" > ckpt/step'
    for step, begins in (("1", "begins at"), ("2", "begins at 1"), ("3", "begins at 2")):
        checkpoint = {"path": "ckpt", "url": engine.place("sets")}
        # A gang, else one may be over, and have stored its set, before the other is prepared.
        job = engine.submit(workers(program, 2, env={"STEP": step}), checkpoint=checkpoint, gang=True)
        job.succeeded()
        assert [job.lines(f"worker:{index}")[0].strip() for index in (0, 1)] == [begins, begins]


def test_a_group_without_a_set_begins_anew_together(engine: Engine) -> None:
    """What one member has by itself, stored nowhere yet, is not what the others begin from."""
    program = python("""
        import os, pathlib, sys, time
        path, mine = pathlib.Path("ckpt"), os.environ["TRAINMASTER_INDEX"]
        print("begins at", (path / "step").read_text() if path.exists() else 0, flush=True)
        if os.environ["TRAINMASTER_ATTEMPT"] == "1":
            if mine == "0":
                path.mkdir()
                (path / "step").write_text("1")
                open(os.environ["MADE"], "w").close()
                torn = open(path / "torn", "w")  # never a whole set
                time.sleep(1000)
            while not os.path.exists(os.environ["MADE"]):
                time.sleep(0.02)
            sys.exit(7)
    """)
    made = str(engine.folder / "made")
    job = engine.submit(workers(program, 2, restart="group", env={"MADE": made}), checkpoint={"path": "ckpt"})
    job.succeeded()
    assert [job.lines(f"worker:{index}", attempt=2) for index in (0, 1)] == [["begins at 0"]] * 2
