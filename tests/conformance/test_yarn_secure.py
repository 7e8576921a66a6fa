"""Jobs on secure clusters: by tickets that end, by tokens that end, with each protection of what is on the wire.

One cluster gives tokens that are good for 120 s (hdfs-native leaves out the last minute of their 180 s), those that are brought later too:
twice what a busy machine needs to begin a job.
A program shows whether it can read HDFS by opening a connection of its own each time; what masters and agents have shows when the NameNode
was restarted, for then all of them log in anew.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from conformance.engines import LIMIT, SMALL, TM, Submitted, Yarn
from conformance.test_hadoop_secure import Place, entered
from hadoop import own_hadoop
from kdc import skew
from placing import EXAMPLES
from waiting import until

import trainmaster
from trainmaster.client.jobs import doctor
from trainmaster.clusters.hadoop import Cluster, Settings
from trainmaster.clusters.hadoop.kerberos import REALM
from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.data.store.stores import store_for
from trainmaster.hadoop.errors import RemoteError
from trainmaster.hadoop.security import delegation
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN, Credentials

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

SHORT = Settings(
    nodes=2, memory=6144, kerberos="privacy", token_renewal=120.0, token_life=180.0, master_expiry=120.0,
    properties={"yarn.resourcemanager.am.max-attempts": "4"},
)  # fmt: skip
READS = """
import os, subprocess, sys, time
one = "import hdfs_native, sys; hdfs_native.Client(sys.argv[1]).get_file_info('/')"
while not os.path.exists(sys.argv[2]):
    done = subprocess.run([sys.executable, "-c", one, sys.argv[1]], capture_output=True)
    print(f"{time.time():.0f}", "refused" if done.returncode else "read", flush=True)
    time.sleep(0.5)
"""


@attrs.define
class Secure:
    """A secure cluster and who uses it."""

    place: Place
    engine: Yarn
    monkeypatch: pytest.MonkeyPatch

    def log_in(self, user: str = "alice", *options: str, name: str = "") -> Path:
        """Have a ticket; the file it is in."""
        cache = Path(self.place.ticket(user, *options, name=name).cache.removeprefix("FILE:"))
        self.monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
        return cache

    def reads(self, name: str, **keys: Any) -> dict[str, Any]:
        """A job whose program reads HDFS again and again, until it may end."""
        from trainmaster.hadoop.conf import default_fs

        self.engine.write("reads.py", READS)
        command = [sys.executable, "-u", "reads.py", default_fs(self.place.conf), str(self.engine.folder / "go")]
        worker = {"command": command, "resources": SMALL}
        small = {"resources": {"memory": "256MiB"}}
        return {"name": name, "roles": {"worker": worker}, "files": ["reads.py"], "master": small, **keys}

    def submit(self, name: str, **keys: Any) -> Submitted:
        job = self.reads(name, **keys)
        return self.engine.submit(job.pop("roles"), **job)

    def applications(self) -> set[str]:
        """Those of the cluster, by id and state."""
        listed = self.place.cluster.run(
            "org.apache.hadoop.yarn.client.cli.ApplicationCLI", "-list", "-appStates", "ALL"
        )
        return {word for word in listed.stdout.split() if word.startswith("application_")}


def at(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    place = entered(cluster, folder, monkeypatch)
    (folder / "place").mkdir()
    made = Secure(place, Yarn(folder / "place", cluster), monkeypatch)
    try:
        yield made
    finally:
        made.log_in("alice", name="last")
        made.engine.close()


@pytest.fixture(scope="module")
def short() -> Iterator[Cluster]:
    with own_hadoop(SHORT) as cluster:
        yield cluster


@pytest.fixture
def lasting(short: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    yield from at(short, tmp_path, monkeypatch)


@pytest.fixture
def secure(secure_hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    yield from at(secure_hadoop, tmp_path, monkeypatch)


def said(made: Submitted, what: str, after: float) -> bool:
    """Whether its program has said so, later than that."""
    lines = [line.split() for line in made.lines()]
    return any(len(line) == 2 and line[1] == what and float(line[0]) > after for line in lines)


def good_until(made: Submitted) -> float:
    return float(made.until_status("tokens", lambda status: "tokens" in status)["tokens"]["until"])


# -- jobs that last longer than their ticket, and than their tokens --


def test_jobs_outlive_their_ticket_and_their_tokens(lasting: Secure) -> None:
    """By a keytab, by `tm renew`, by whoever watches; brought late they still help; without, a job ends in clear words."""
    secure = lasting
    secure.log_in("alice", name="submitting")
    kerberos = {"principal": f"alice@{REALM}", "keytab": str(secure.place.cluster.keytab("alice"))}
    keyed = secure.submit("keyed", engines={"yarn": {"kerberos": kerberos}})
    brought, late = secure.submit("brought"), secure.submit("late")
    left = secure.submit("left", timeouts={"storage": "10s"})
    subprocess.run(["kdestroy"], check=True)
    secure.log_in("alice", name="watching")
    secure.engine.write("job.json", json.dumps(secure.reads("watched")))
    with subprocess.Popen(
        [TM, "run", "--engine", "yarn", "job.json"], cwd=secure.engine.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:  # fmt: skip
        try:
            watched = Submitted(until(lambda: _attached("watched"), LIMIT, what="the watched job"))
            secure.engine.jobs.append(watched)
            jobs = [keyed, brought, watched, late, left]
            first = {made.id: good_until(made) for made in jobs}
            told = secure.engine.tm("renew", brought.id)
            assert told.returncode == 0, told.stderr
            assert told.stdout.startswith(f"{brought.id} has newer tokens, good until 20"), told.stdout
            second_master(secure, brought)
            for made in jobs:
                what = "refused" if made in (late, left) else "read"
                until(
                    functools.partial(said, made, what, first[made.id] + 1), LIMIT, what=functools.partial(made.lines)
                )
            assert good_until(late) == first[late.id]
            assert secure.engine.tm("renew", brought.id).returncode == 0  # again: it has been a while
            namenode = secure.place.cluster.daemon("namenode")
            namenode.kill()
            namenode.start()
            secure.place.cluster.wait_ready()
            secure.engine.write("go", "")
            for made in (keyed, brought, watched):
                made.succeeded()
            waits = late.until_status("a clear word", lambda status: "tokens" in status["waiting"])
            assert "have ended" in waits["waiting"]
            assert secure.engine.tm("renew", late.id).returncode == 0
            late.succeeded()
            ended = left.end()  # its log was open and could be synced without the NameNode; what it printed is lost
            assert any("the delegation tokens for localhost" in gave_up for gave_up in ended["gave_up"]), ended
            _, err = watching.communicate(timeout=LIMIT)
            assert watching.returncode == 0, err
            assert "its tokens were renewed: good until 20" in err
        finally:
            watching.kill()


def second_master(secure: Secure, made: Submitted) -> None:
    """Kill a job's master: the next one begins with the tokens of the submission, and has the newer ones from the agent."""
    newer, before = good_until(made), made.status()["epoch"]
    secure.engine.kill_master(made)
    made.until_status(
        "the next master to have the newer tokens",
        lambda status: status["epoch"] > before and status.get("tokens", {}).get("until") == newer,
    )


def _attached(name: str) -> trainmaster.Run | None:
    try:
        return trainmaster.attach(name)
    except TrainmasterError:  # it is not there yet
        return None


def test_a_job_that_may_outlive_its_tokens_is_refused(lasting: Secure) -> None:
    secure = lasting
    secure.log_in()
    secure.engine.write("job.json", json.dumps(secure.reads("long", timeouts={"job": "1h"})))
    before = secure.applications()
    for words in (["run"], ["run", "--dry-run"]):
        refused = secure.engine.tm(*words, "--engine", "yarn", "job.json")
        assert refused.returncode == 2, refused.stdout + refused.stderr
        words = r"the job may last 1 h, and would fail after (2 m|1 m \d+ s), when its tokens end  \[tokens\]"
        assert re.search(words, refused.stderr), refused.stderr
        assert "give engines.yarn.kerberos: {principal, keytab}" in refused.stderr
    keytabs = {
        str(secure.engine.folder / "none.keytab"): "cannot be read: No such file or directory",
        str(secure.place.cluster.keytab("bob")): f"no key of alice@{REALM} in the keytab",
    }
    for keytab, why in keytabs.items():
        settings = {"yarn": {"kerberos": {"principal": f"alice@{REALM}", "keytab": keytab}}}
        secure.engine.write("job.json", json.dumps(secure.reads("long", engines=settings)))
        refused = secure.engine.tm("submit", "--engine", "yarn", "job.json")
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
    assert secure.applications() == before
    assert "long" not in {job["name"] for job in trainmaster.jobs()}


# -- tickets that are of no use --


def test_tokens_of_a_submission_that_fails_are_cancelled(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the ResourceManager and the NameNode know them no more."""
    issued: list[Credentials] = []

    async def refused(manager: Any, submission: Any, noting: Any) -> None:
        issued.append(Credentials.read(submission.am_container_spec.tokens))
        await noting
        raise EngineFailed("the ResourceManager went away", anchor="yarn")

    secure.log_in()
    monkeypatch.setattr("trainmaster.engines.yarn.client._hand_over", refused)
    with pytest.raises(EngineFailed, match="went away"):
        secure.submit("refused")
    tokens = {token.identifier: token for token in issued[0].tokens.values()}.values()
    assert {token.kind for token in tokens} == {HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN}
    for token in tokens:
        with pytest.raises(RemoteError, match=r"(?i)token|found"):
            asyncio.run(delegation.cancel(secure.place.conf, Kerberos(), token))


def test_a_keytab_is_refused_where_it_could_be_read_on_its_way(secure: Secure) -> None:
    """The weakest protection that the configuration names is what may be agreed on."""
    secure.log_in()
    kerberos = {"principal": f"alice@{REALM}", "keytab": str(secure.place.cluster.keytab("alice"))}
    with pytest.raises(
        BadInput, match=r"would cross the network unencrypted: hadoop\.rpc\.protection is privacy,integrity,auth"
    ):
        secure.submit("keyed", engines={"yarn": {"kerberos": kerberos}})


def test_without_a_ticket_that_is_good_nothing_is_submitted(secure: Secure) -> None:
    """None, an expired one, one of the future, a clock that is wrong: one clear error, and nothing is left."""
    secure.engine.write("job.json", json.dumps(secure.reads("t")))
    secure.log_in()
    before = secure.applications()

    def none() -> None:
        secure.monkeypatch.setenv("KRB5CCNAME", f"FILE:{secure.place.folder}/no-ticket")

    def expired() -> None:
        secure.log_in("alice", "-l", "1s")
        until(lambda: _expired(), what="the ticket to expire")

    def early() -> None:
        secure.log_in("alice", "-s", "3h")

    def skewed() -> None:
        skew(secure.log_in("alice"), 7200)

    says = {
        none: "error: no Kerberos ticket in FILE:",
        expired: f"error: the Kerberos ticket of alice@{REALM} expired at 20",
        early: f"error: the Kerberos ticket of alice@{REALM} is not yet valid, but from 20",
        skewed: "error: the clocks of this machine and of",
    }
    for prepare, words in says.items():
        prepare()
        done = secure.engine.tm("run", "--engine", "yarn", "job.json")
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith(words), done.stderr
        assert done.stderr.count("error") == 1
        assert "[ticket]" in done.stderr
        assert (done.stdout, trainmaster.jobs()) == ("", [])
    secure.log_in()
    assert secure.applications() == before


def test_doctor_tells_how_long_the_ticket_is_good(secure: Secure) -> None:
    def told() -> dict[str, doctor.Finding]:
        return {found.check: found for found in doctor.examined()}

    cache = secure.log_in("alice", "-l", "2h")
    found = told()
    assert (found["ticket"].state, found["yarn"].text.partition(" ")[0]) == (doctor.GOOD, "alice")
    told_of = rf"alice@{re.escape(REALM)} for (2 h|1 h 5\d m) more, in FILE:{re.escape(str(cache))}"
    assert re.fullmatch(told_of, found["ticket"].text), found["ticket"].text
    secure.log_in("alice", "-l", "30m")
    assert (told()["ticket"].state, "kinit" in told()["ticket"].mend) == (doctor.WARNING, True)
    secure.monkeypatch.setenv("KRB5CCNAME", f"FILE:{secure.place.folder}/no-ticket")
    found = told()
    assert "ticket" not in found
    assert found["yarn"].text.startswith("no Kerberos ticket in FILE:")
    assert "kinit" in found["yarn"].mend


def _expired() -> bool:
    return subprocess.run(["klist", "-s"], check=False).returncode != 0


# -- each protection --


def digits(secure: Secure, folder: Path) -> None:
    """The digits by PyTorch on two nodes, from HDFS to HDFS: one worker is more than half a node, and leaves room for the master."""
    memory = round(0.52 * secure.place.cluster.settings.memory)
    secure.log_in()
    subprocess.run([sys.executable, EXAMPLES / "digits" / "data.py", folder / "data"], check=True, timeout=LIMIT)
    for path in (folder / "data").rglob("*.csv"):
        secure.engine.put(f"data/{path.relative_to(folder / 'data')}", path.read_bytes())
    secure.engine.write("train.py", (EXAMPLES / "digits" / "train.py").read_text())
    job = {
        "name": "digits", "framework": "pytorch", "files": ["train.py"],
        "roles": {"worker": {
            "command": [sys.executable, "train.py"], "replicas": 2, "resources": {"cores": 1, "memory": f"{memory}MiB"},
            "env": {"OMP_NUM_THREADS": "1"},
        }},
        "inputs": {
            "train": {"url": secure.engine.place("data/train/*.csv"), "as": "download"},
            "test": {"url": secure.engine.place("data/test/*.csv"), "as": "download", "split": "whole"},
        },
        "outputs": {"model": {"url": secure.engine.place("model"), "from": "worker:0"}},
        "checkpoint": {"path": "ckpt", "every": "5s", "url": secure.engine.place("ckpt")},
    }  # fmt: skip
    secure.engine.write("job.json", json.dumps(job))
    done = secure.engine.tm("run", "--engine", "yarn", "job.json", limit=600.0)
    made = Submitted(trainmaster.attach("digits"))
    secure.engine.jobs.append(made)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(store_for(secure.engine.place("model")).get("worker-0/result.json") or b"{}")
    assert told["accuracy"] >= 0.95
    assert len({task["node"] for task in made.status()["tasks"]}) == 2


def test_the_digits_with_privacy(secure: Secure, tmp_path: Path) -> None:
    digits(secure, tmp_path)


@pytest.mark.soak
def test_the_digits_with_integrity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watched, for its tokens end in the middle where the machine is busy."""
    with own_hadoop(attrs.evolve(SHORT, kerberos="integrity")) as cluster:
        for secure in at(cluster, tmp_path, monkeypatch):
            digits(secure, tmp_path)


def test_the_digits_with_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_hadoop(Settings(nodes=2, kerberos="authentication")) as cluster:
        for secure in at(cluster, tmp_path, monkeypatch):
            digits(secure, tmp_path)
