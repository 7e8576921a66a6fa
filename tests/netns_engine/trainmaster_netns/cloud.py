"""The cloud: a process in a network namespace with a bridge, which grants containers and is the parent of all their processes.

No namespace has a name, and no device is in this machine's own namespace: the kernel removes all of it with the processes. A call is one
line of JSON each way; one lock serves all. The next master of a job begins when the one before has ended: there are never two.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.machine.stimuli import Key
from trainmaster.host import linux

MASTERS = 3  # of one job
PATIENCE, ANSWER = 15.0, 1.0  # s that a container has to end by itself, and that a master waits for changes
# A container begins: it is in its namespace, waits for its device, and becomes master or agent.
BEGIN = 'echo; read _; ip link set lo up; ip addr add "$1/16" dev eth0; ip link set eth0 up; exec sh runtime/start "$2" >out 2>&1'


@attrs.define(eq=False)
class Application:
    folder: Path
    launch: Mapping[str, Any]  # payload, environ, files
    fate: tuple[str, str] = ("running", "its master does not answer yet")
    machines: dict[str, tuple[Key, subprocess.Popen[bytes]]] = attrs.field(
        factory=dict
    )  # the master's too, whose task is ""
    seen: list[dict[str, Any]] = attrs.field(factory=list)  # each machine that began or ended, in order

    def kill(self) -> None:
        for _, process in self.machines.values():
            process.kill()

    def note(self, key: Key, name: str, devices: Sequence[str] = (), status: int | None = None) -> None:
        self.seen.append({"task": key[0], "serial": key[1], "name": name, "devices": devices, "status": status})


class Call(socketserver.StreamRequestHandler):
    server: Cloud

    def handle(self) -> None:
        question = json.loads(self.rfile.readline())
        verb, name = question.pop("verb"), question.pop("application", None)
        with self.server.lock:
            known = [] if name is None else [self.server.known.get(name)]
            answer = None if None in known else getattr(self.server, verb)(*known, **question)
            self.server.lock.notify_all()
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Cloud(socketserver.ThreadingUnixStreamServer):
    daemon_threads, request_queue_size = True, 128

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.known: dict[str, Application] = {}
        self.started = 0  # containers
        run("ip link set lo up", "ip link add br0 type bridge", "ip link set br0 up")
        linux.adopt_orphans()
        super().__init__("socket", Call)

    def submit(self, name: str, **launch: Any) -> None:
        self.known[name] = Application(Path(name).absolute(), launch)
        self._start(self.known[name], ("", 1), launch["payload"])

    def applications(self) -> dict[str, Any]:
        return {name: (application.fate, application.launch["payload"]) for name, application in self.known.items()}

    def network(self, application: Application) -> str:
        """Return the network namespace of the master; where there is none, what is no file."""
        masters = [process.pid for (task, _), process in application.machines.values() if not task]
        return f"/proc/{[*masters, 0][0]}/ns/net"

    def end(self, application: Application, forget: bool = False) -> None:
        if application.fate[0] == "running":
            application.fate = "killed", "it was ended by a call"
        application.kill()
        self.lock.wait_for(lambda: not application.machines)
        if forget:
            shutil.rmtree(application.folder)
            del self.known[application.folder.name]

    def seen(self, application: Application, since: int) -> list[dict[str, Any]]:
        """Return what is seen from the row `since` on; wait a moment for it where there is nothing yet."""
        if since:
            self.lock.wait_for(lambda: len(application.seen) > since, ANSWER)
        return application.seen[since:]

    def create(self, application: Application, specs: Sequence[Mapping[str, Any]]) -> None:
        for spec in specs:
            if all((row["task"], row["serial"]) != (spec["task"], spec["serial"]) for row in application.seen):
                name = self._start(application, (spec["task"], spec["serial"]), spec)
                application.note((spec["task"], spec["serial"]), name, spec["devices"])

    def delete(self, application: Application, names: Sequence[str]) -> None:
        for name in names:
            if name in application.machines:
                process = application.machines[name][1]
                process.terminate()
                threading.Timer(PATIENCE, process.kill).start()

    def close(self, application: Application, state: str) -> None:
        application.fate = "ended", f"its master ended it as {state}"

    def _start(self, application: Application, key: Key, payload: Mapping[str, Any]) -> str:
        """Start a container, whose stdin is `payload`, and return its name and its machine's."""
        self.started += 1
        name, address = f"c{self.started}", f"10.77.{self.started >> 8}.{self.started & 255}"
        launch, part = application.launch, "agent" if key[0] else "master"
        folder = application.folder / name
        folder.mkdir(parents=True)
        for file, path, is_archive in launch["files"]:
            (folder / file).symlink_to(unpacked(Path(path)) if is_archive else path)
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", BEGIN, "sh", address, f"trainmaster.{part}.container:main"],
            cwd=folder, env={**os.environ, **launch["environ"]}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        application.machines[name] = key, process
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            process.stdout.readline()
            run(f"ip link add {name} type veth peer name eth0 netns {process.pid}", f"ip link set {name} master br0 up")
            more = {"address": address, "container": name, "node": name}
            process.stdin.write(b"\n" + json.dumps({**payload, **more}).encode())
        threading.Thread(target=self._wait, args=(application, key, name), daemon=True).start()
        return name

    def _wait(self, application: Application, key: Key, name: str) -> None:
        status = application.machines[name][1].wait()
        with self.lock:
            del application.machines[name]
            self._end_orphans()
            if key[0]:
                application.note(key, name, status=status if status >= 0 else 128 - status)
            elif application.fate[0] == "running" and status and key[1] < MASTERS:
                self._start(application, ("", key[1] + 1), application.launch["payload"])
            elif application.fate[0] == "running":
                application.fate = "failed" if status else "ended", f"its last master ended with {status}"
                application.kill()
            self.lock.notify_all()

    def _end_orphans(self) -> None:
        """Kill what ended containers have left: it has become our child."""
        known = {process.pid for application in self.known.values() for _, process in application.machines.values()}
        while orphans := {*map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())} - known:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def unpacked(archive: Path) -> Path:
    """Return the folder with an archive's contents; make it where it is not there yet."""
    folder = Path("cache", f"{archive.stat().st_mtime_ns}-{archive.name}").absolute()
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.unpack_archive(archive, draft, filter="tar")
        draft.rename(folder)
    return folder


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    cloud = Cloud()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        cloud.serve_forever()
    finally:
        with cloud.lock:
            for application in cloud.known.values():
                cloud.end(application)
