"""Memory beside the program, as proportional set size: agents and master of a job of two tasks, a master of 1,000 agents.

    python benchmarks/memory.py [--runs 3]

Two tasks: `tm submit -n 2 -- sleep`, read when both programs run and two seconds more have passed; the peer in the same
run is torchrun with two processes that sleep. A thousand agents: the master's own application and listener, with the
master's code loaded and the state of a job of 1,000 tasks, on TCP under TLS with a certificate made for the run; two
other processes hold 500 real connections each, which have said hello and were welcomed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import figures

CONNECTIONS, CLIENTS = 1000, 2
TOKEN = "0" * 64
LIMIT = 60.0  # s


def pss(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no proportional set size of {pid}")


def until(holds: Callable[[], Any]) -> Any:
    ends = time.monotonic() + LIMIT
    while not (found := holds()):
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.05)
    return found


def two_tasks(environ: Mapping[str, str]) -> dict[str, float]:
    from trainmaster.host.processes import AGENT, MASTER, living

    command = [figures.TM, "submit", "--json", "-n", "2", "--", "sleep", "600"]
    job = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)["job"]

    def running() -> bool:
        told = subprocess.run([figures.TM, "status", job, "--json"], env=environ, capture_output=True, text=True)
        return told.returncode == 0 and [task["state"] for task in json.loads(told.stdout)["tasks"]] == ["running"] * 2

    try:
        until(running)
        time.sleep(2.0)
        agents = [pss(made.process.pid) for made in living(job, AGENT)]
        return {"agent": max(agents), "master": max(pss(made.process.pid) for made in living(job, MASTER))}
    finally:
        subprocess.run([figures.TM, "kill", job], env=environ, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([figures.TM, "wait", job], env=environ, check=False, stdout=subprocess.DEVNULL)


def torchrun(environ: Mapping[str, str], folder: str) -> float:
    said = Path(folder, "said")
    said.mkdir(exist_ok=True)
    script = f'mktemp "{said}/XXXXXX"; exec sleep 600'  # torchrun would take a $ for its own
    command = [
        str(figures.BIN / "torchrun"),
        "--standalone",
        "--nproc_per_node",
        "2",
        "--no-python",
        "sh",
        "-c",
        script,
    ]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list(said.iterdir())) == 2)
        time.sleep(2.0)
        return pss(process.pid)
    finally:
        process.terminate()
        process.wait()
        for name in said.iterdir():
            name.unlink()


@contextlib.contextmanager
def certificate() -> Iterator[tuple[str, str]]:
    """Paths of a certificate signed by itself, and of its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trainmaster")]), datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    built = built.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    with tempfile.TemporaryDirectory() as folder:
        paths = f"{folder}/certificate.pem", f"{folder}/key.pem"
        Path(paths[0]).write_bytes(built.sign(key, hashes.SHA256()).public_bytes(pem))
        Path(paths[1]).write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        yield paths


class Host:
    """The master, as far as connections see it."""

    epoch = 1

    def __init__(self) -> None:
        from trainmaster.core.decide.drive import Drive
        from trainmaster.core.machine.state import State, populate
        from trainmaster.core.spec.reading import job_from
        from trainmaster.master.turn import Turns

        state = State(id="bench-aaaaaa")
        self.turns = Turns(Drive(state))
        populate(state, job_from({"name": "bench", "roles": {"worker": {"command": "true", "replicas": CONNECTIONS}}}))

    def tell(self, *stimuli: object) -> None: ...

    def doubt(self, epoch: int) -> None: ...

    async def waited_for(self, connection: Any) -> bool:
        return False

    def lost(self, connection: object) -> None: ...

    async def receive(self, connection: object, message: object) -> None: ...


async def serve(paths: tuple[str, str]) -> None:
    """A master's listener; says its port, then answers each line on stdin with the number of agents and the memory."""
    from trainmaster.master import main
    from trainmaster.master.connections.agents import Agents
    from trainmaster.master.connections.serve import Application, Listener, warm

    main.warm()
    warm()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    agents = Agents(Host())  # type: ignore[arg-type]

    def rest() -> Any:
        raise RuntimeError("nobody reads here")

    bound = socket.create_server(("127.0.0.1", 0))
    await Listener(Application(agents, TOKEN, rest)).on_tcp(bound, context)
    port = bound.getsockname()[1]
    print(port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps([len(agents.connections), pss(os.getpid())]), flush=True)


async def connect(port: int, first: int, count: int) -> None:
    """Hold `count` connections until stdin ends."""
    from websockets.asyncio.client import connect

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    open_ones = []
    for index in range(first, first + count):
        connection = await connect(
            f"wss://127.0.0.1:{port}/api/v1/agent", ssl=context, compression=None, ping_interval=None, open_timeout=LIMIT,
            additional_headers={"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        hello = {
            "type": "hello",
            "v": "1.0",
            "task": f"worker:{index}",
            "serial": 1,
            "epoch": 0,
            "attempt": 1,
        }
        await connection.send(json.dumps(hello))
        assert json.loads(await connection.recv())["type"] == "welcome"
        open_ones.append(connection)
    await asyncio.to_thread(sys.stdin.read)


def thousand(environ: Mapping[str, str]) -> tuple[float, float]:
    """MiB of a master with none and with all of the connections."""
    pipes = {"stdin": subprocess.PIPE, "env": environ, "text": True}
    started: list[subprocess.Popen[str]] = []

    def start(*told: object, **more: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, __file__, *map(str, told)], **pipes, **more))
        return started[-1]

    with certificate() as paths:
        try:
            server = start("serve", *paths, stdout=subprocess.PIPE)
            assert server.stdin is not None
            assert server.stdout is not None

            def asked() -> list[float]:
                print(file=server.stdin, flush=True)
                return list(json.loads(server.stdout.readline()))

            port = int(server.stdout.readline())
            _, before = asked()
            each = CONNECTIONS // CLIENTS
            for number in range(CLIENTS):
                start("connect", port, number * each, each)
            until(lambda: asked()[0] == CONNECTIONS)
            time.sleep(5.0)  # pings have gone both ways
            count, after = asked()
            assert count == CONNECTIONS, f"{count} connections are left"
            return before, after
        finally:
            for process in started:
                process.kill()
                process.communicate()


def measure(runs: int) -> list[figures.Row]:
    taken: dict[str, list[float]] = {name: [] for name in ("agent", "master", "torchrun", "before", "thousand")}
    with figures.place() as environ, tempfile.TemporaryDirectory() as folder:
        os.environ.update({name: environ[name] for name in ("TRAINMASTER_STATE_DIR", "TRAINMASTER_RUNTIME_DIR")})
        for _ in range(runs):
            for name, value in two_tasks(environ).items():
                taken[name].append(value)
            taken["torchrun"].append(torchrun(environ, folder))
            before, after = thousand(environ)
            taken["before"].append(before)
            taken["thousand"].append(after)
    return [
        figures.Row("an agent", taken["agent"], "MiB", 30, "torchrun", taken["torchrun"]),
        figures.Row("the master of 2 tasks", taken["master"], "MiB", 60, "torchrun", taken["torchrun"]),
        figures.Row("the master of 1,000 agents under TLS", taken["thousand"], "MiB", 150),
        figures.Row("the same before they connect", taken["before"], "MiB"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve((sys.argv[2], sys.argv[3])))
    elif sys.argv[1:2] == ["connect"]:
        asyncio.run(connect(*map(int, sys.argv[2:])))
    else:
        figures.main(measure, 3, __doc__)
