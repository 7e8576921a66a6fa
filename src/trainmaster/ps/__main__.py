"""The program of a parameter server: `python -m trainmaster.ps`.

In a job it is the command of a role `ps` with a port `ps`; everything else comes from the job. By hand, flags say where it serves:

    python -m trainmaster.ps --index 0 --servers 2 --listen unix:/tmp/ps-0 --leader unix:/tmp/ps-0 --token-file token --directory ckpt

A server whose index is `--servers` or more joins the others. A server that SIGTERM ends gives its rows to the others first (in a job, or
with --leave).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from functools import partial

from ..runtime.network.pinned import serving
from ..runtime.reports import cannot_go_on
from .errors import ServerError, StateLost
from .job import BadPlace, place_of_job
from .moving.joining import Joining
from .peers import Fatal, Renumbered, Settings
from .server import Server
from .storage.former import Unusable, is_former
from .storage.placements import job_name, present_servers
from .tables.memory import release_memory
from .wire.connections import listen_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .shard import Shard

_ENDING = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainmaster.ps", description="Serve parameters and embedding tables to workers."
    )
    parser.add_argument(
        "--directory", default="", help="of checkpoints and logs; in a job what TRAINMASTER_PS_DIRECTORY names"
    )
    parser.add_argument(
        "--init",
        default="",
        metavar="DIRECTORY",
        help="begin with the newest checkpoint of a former job's servers in it or below, where there is no state",
    )
    parser.add_argument(
        "--servers", type=int, default=0, help="how many there are; in a job by default as many as its tasks"
    )
    by_hand = parser.add_argument_group("outside of a job")
    by_hand.add_argument(
        "--index",
        type=int,
        default=0,
        help="of this server; from --servers on: it joins the others, who move rows to it",
    )
    by_hand.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="unix:PATH, unix:@NAME or HOST:PORT; several times",
    )
    by_hand.add_argument("--leader", action="append", default=[], metavar="ADDRESS", help="of server 0")
    by_hand.add_argument(
        "--leave",
        action="store_true",
        help="at SIGTERM have the others take over the rows of this server, if it is the last",
    )
    by_hand.add_argument("--token-file", metavar="FILE", help="with the token that workers must show")
    by_hand.add_argument("--certificate", metavar="FILE", help="PEM, for TCP")
    by_hand.add_argument("--key", metavar="FILE", help="PEM, of the certificate")
    options = parser.parse_args()
    try:
        if options.listen:
            return _serve_by_hand(options)
        place = place_of_job(options.servers)
        settings = Settings(
            place.index, place.servers, place.token, place.certificate, place.leader, options.directory or place.directory,
            _former_in(options.init), place.listen, place.told_servers,
        )  # fmt: skip
        return _serve(settings, place.certificate, place.key, place.publish, leaves=True, loss=place.loss)
    except BadPlace as error:
        print(f"ps: {error}", file=sys.stderr)
        return 2
    except (Unusable, ServerError) as error:
        print(f"ps: {error}", file=sys.stderr)
        cannot_go_on(str(error))
        return error.status if isinstance(error, ServerError) else 2
    except (Fatal, OSError) as error:
        print(f"ps: {error}", file=sys.stderr)
        return 1


def _former_in(place: str) -> str:
    """Return the directory of a former job's checkpoints; "" where it has none: a submitter who cannot look in has workers find out."""
    if place and not is_former(place):
        print(f"ps: {place} has no checkpoint of parameter servers: this one begins with nothing", flush=True)
        return ""
    return place


def _serve_by_hand(options: argparse.Namespace) -> int:
    if not options.token_file:
        raise BadPlace("--listen needs --token-file: the file with the token that workers must show")
    servers = options.servers or 1
    if options.index < 0 or (options.index >= servers and not options.leader):
        raise BadPlace(
            f"--index is from 0 to --servers - 1, and is {options.index} of {servers}; one that joins others needs --leader"
        )
    token = _read(options.token_file)
    if not token:
        raise BadPlace(f"--token-file: {options.token_file} is empty, and would let everybody in")
    certificate, key = _read(options.certificate), _read(options.key)
    leader = tuple(options.leader)
    present = present_servers(options.directory, options.index, job_name(token), servers)
    settings = Settings(
        options.index,
        present,
        token,
        certificate,
        lambda: leader,
        options.directory,
        options.init,
        options.listen,
        servers,
    )
    return _serve(settings, certificate, key, leaves=options.leave)


def _serve(
    settings: Settings,
    certificate: str,
    key: str,
    publish: Callable[[], None] = lambda: None,
    *,
    leaves: bool,
    loss: str = "",
) -> int:
    """Serve in one placement after another, until this server ends or leaves. `leaves`: SIGTERM has the others take over its rows.
    `loss`: why it cannot begin without a part of theirs. Raises StateLost.
    """
    if not key and any(not address.startswith("unix:") for address in settings.addresses):
        raise BadPlace("over TCP a server needs a certificate and its key")
    tls = serving(certificate, key) if key else None
    listeners: list[socket.socket] = []
    shard: Shard | None = None
    came: list[int] = []  # signals that the next placement's server must know too
    while True:
        if settings.index >= settings.servers:
            joining = Joining(settings)
            _obey_signals(joining.end, came)
            if came:
                return 0
            if (arrived := joining.run()) is None:
                return 0
            if loss and arrived[1] is None:
                raise StateLost(loss)
            settings, shard = replace(settings, servers=arrived[0]), arrived[1]
        try:
            # One that leaves has rows that nobody else has, and what came by a move is in no file yet.
            _obey_signals(partial(_end_later, came) if leaves or shard is not None else None, came)
            server = Server(settings, tls, shard)  # once its former process has ended
            release_memory()  # of the former placement
            listeners = listeners or listen_at(settings.addresses)
            publish()
            end = server.leave if leaves else server.end
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # a second call of `end` means more than the first
            _obey_signals(end, came)
            if came:
                end()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            print(
                f"ps: server {settings.index} of {settings.servers} serves version {server.shard.version} at"
                f" {', '.join(settings.addresses)}",
                flush=True,
            )
            server.run(listeners)
        except Renumbered as change:
            settings, shard = replace(settings, servers=change.servers), change.shard
        else:
            return 0


def _obey_signals(end: Callable[[], None] | None, came: list[int]) -> None:
    """Have SIGTERM and SIGINT call `end`, and note them in `came`; None: they end the process at once."""

    def obey(number: int, frame: object) -> None:
        assert end is not None
        came.append(number)
        end()

    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL if end is None else obey)


def _end_later(came: list[int]) -> None:
    """Say that this server ends once it has its rows; at the second signal end it at once. For a signal's handler."""
    if len(came) > 1:
        signal.signal(came[-1], signal.SIG_DFL)
        signal.raise_signal(came[-1])
    os.write(1, b"ps: this server ends once it has its rows; another signal ends it at once\n")


def _read(path: str | None) -> str:
    if not path:
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read().strip() + "\n" if path.endswith(".pem") else file.read().strip()


if __name__ == "__main__":
    sys.exit(main())
