"""The program of a parameter server: `python -m trainmaster.ps`.

In a job it is the command of a role `ps` with a port `ps`; everything else comes from the job. By hand it is told by flags where to serve:

    python -m trainmaster.ps --index 0 --servers 2 --listen unix:/tmp/ps-0 --leader unix:/tmp/ps-0 --token-file token --directory ckpt
"""

from __future__ import annotations

import argparse
import signal
import sys

from ..runtime.pinned import serving
from ..runtime.reports import cannot_go_on
from .errors import ServerError
from .job import BadPlace, place_of_job
from .server import Fatal, Server, Settings
from .storage.former import Unusable
from .storage.restoring import CannotRestore
from .wire.connections import listen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


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
    by_hand.add_argument("--index", type=int, default=0)
    by_hand.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="unix:PATH, unix:@NAME or HOST:PORT; several times",
    )
    by_hand.add_argument("--leader", action="append", default=[], metavar="ADDRESS", help="of server 0")
    by_hand.add_argument("--token-file", metavar="FILE", help="with the token that workers must show")
    by_hand.add_argument("--certificate", metavar="FILE", help="PEM, for TCP")
    by_hand.add_argument("--key", metavar="FILE", help="PEM, of the certificate")
    options = parser.parse_args()
    try:
        if options.listen:
            return _serve_by_hand(options)
        place = place_of_job(options.servers)
        settings = Settings(
            place.index,
            place.servers,
            place.token,
            place.certificate,
            place.leader,
            options.directory or place.directory,
            options.init,
        )
        return _serve(settings, place.listen, place.certificate, place.key, place.publish)
    except (BadPlace, Unusable) as error:
        print(f"ps: {error}", file=sys.stderr)
        return 2
    except ServerError as error:
        print(f"ps: {error}", file=sys.stderr)
        cannot_go_on(str(error))
        return error.status
    except (CannotRestore, Fatal, OSError) as error:
        print(f"ps: {error}", file=sys.stderr)
        return 1


def _serve_by_hand(options: argparse.Namespace) -> int:
    if not options.token_file:
        raise BadPlace("--listen needs --token-file: the file with the token that workers must show")
    servers = options.servers or 1
    if not 0 <= options.index < servers:
        raise BadPlace(f"--index is from 0 to --servers - 1, and is {options.index} of {servers}")
    token = _read(options.token_file)
    if not token:
        raise BadPlace(f"--token-file: {options.token_file} is empty, and would let everybody in")
    certificate, key = _read(options.certificate), _read(options.key)
    leader = tuple(options.leader)
    settings = Settings(
        options.index,
        servers,
        token,
        certificate,
        lambda: leader,
        options.directory,
        options.init,
    )
    return _serve(settings, options.listen, certificate, key)


def _serve(
    settings: Settings, addresses: list[str], certificate: str, key: str, publish: Callable[[], None] = lambda: None
) -> int:
    if not key and any(not address.startswith("unix:") for address in addresses):
        raise BadPlace("over TCP a server needs a certificate and its key")
    server = Server(settings, serving(certificate, key) if key else None)  # once its former process has ended
    listeners = [listen(address) for address in addresses]
    publish()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    shard = server.shard
    print(
        f"ps: server {settings.index} of {settings.servers} serves version {shard.version} at {', '.join(addresses)}",
        flush=True,
    )
    server.run(listeners)
    return 0


def _read(path: str | None) -> str:
    if not path:
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read().strip() + "\n" if path.endswith(".pem") else file.read().strip()


if __name__ == "__main__":
    sys.exit(main())
