"""HTTP/1.1 to one server: connections by h11 over asyncio's streams, by TLS where the URL says so, through a proxy where one is set.

A `Connection` carries one exchange at a time. A `ConnectionPool` opens connections and keeps those that are free for the next exchange.
An exchange that was broken off closes its connection, so nobody reads a late answer. TCP itself notices a server that is gone without a
word (keep-alives, TCP_USER_TIMEOUT) within about 20 s; the caller's time limits notice one that hangs.

Every failure is Unreachable, or a ConfError where no other try can go better (a certificate that is not trusted).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from urllib.parse import unquote, urlsplit

import attrs
import h11

from trainmaster.kube.config import Config
from trainmaster.kube.credentials import Presented
from trainmaster.kube.errors import ConfError, Unreachable

CONNECTING = 10.0  # s
SILENCE = 20_000  # ms until an unacknowledged byte means that nobody is there
IDLE = 10.0  # s that a free connection is kept
_BUFFER = 256 * 1024
_AT_ONCE = 64 * 1024


@attrs.frozen
class Head:
    """The beginning of an answer."""

    status: int
    headers: dict[str, str]


class Connection:
    """One connection. `fresh`: nothing was ever asked on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: str) -> None:
        self.reader, self.writer, self.place = reader, writer, place
        self.fresh, self.free_since = True, 0.0
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> Head:
        """Send a request and return the beginning of its answer. Raises Unreachable."""
        self.fresh = False
        with broken(self.place, sent=True):
            request = h11.Request(method=method, target=target, headers=headers)
            parts = [self._http.send(request), self._http.send(h11.Data(data=body)) if body else b""]
            self.writer.write(b"".join([*(part or b"" for part in parts), self._http.send(h11.EndOfMessage()) or b""]))
            await self.writer.drain()
            while not isinstance(event := await self._event(), h11.Response):
                if isinstance(event, h11.ConnectionClosed):
                    raise ConnectionResetError("it closed the connection")
            answer_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            return Head(event.status_code, answer_headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer as it comes."""
        while True:
            with broken(self.place, sent=True):
                event = await self._event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise Unreachable(f"{self.place}: it closed the connection in the middle of an answer", sent=True)

    @property
    def reusable(self) -> bool:
        return (
            self._http.our_state is h11.DONE
            and self._http.their_state is h11.DONE
            and not self.writer.is_closing()
            and not self.reader.at_eof()
        )

    def renew(self) -> None:
        self._http.start_next_cycle()

    def abort(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()

    async def _event(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                if self.reader.at_eof():
                    raise ConnectionResetError("it closed the connection in the middle of an answer") from None
                raise
            if event is h11.NEED_DATA:
                self._http.receive_data(await self.reader.read(_AT_ONCE))
            elif isinstance(event, h11.Event) and not isinstance(event, h11.InformationalResponse):
                return event


class ConnectionPool:
    """The way to one server: opens connections, keeps the free ones."""

    def __init__(self, config: Config) -> None:
        self._config = config
        url = urlsplit(config.server)
        self.secure = url.scheme == "https"
        self.host, self.port = url.hostname or "", url.port or (443 if self.secure else 80)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{shown}:{self.port}"
        self.place = f"the API server {self.authority}"
        self.prefix = url.path.rstrip("/")
        self._free: list[Connection] = []
        self._trusted: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    async def take(self, presented: Presented) -> Connection:
        """Return a free connection, or a new one."""
        now = asyncio.get_running_loop().time()
        self._context(presented)  # connections made under another certificate are not used
        while self._free:
            connection = self._free.pop()
            if connection.reusable and now - connection.free_since < IDLE:
                connection.renew()
                return connection
            connection.abort()
        return await self.open(presented)

    def give(self, connection: Connection) -> None:
        """Take a connection back whose exchange has ended."""
        if connection.reusable:
            connection.free_since = now = asyncio.get_running_loop().time()
            self._free.append(connection)
            while now - self._free[0].free_since >= IDLE:  # of many at once the oldest are left behind
                self._free.pop(0).abort()
        else:
            connection.abort()

    async def open(self, presented: Presented) -> Connection:
        """Open a new connection, of the caller's own."""
        context = self._context(presented)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECTING):
                with broken(self.place, sent=False):
                    if proxy := self._config.proxy:
                        reader, writer = await self._connect_through(proxy)
                    else:
                        reader, writer = await asyncio.open_connection(self.host, self.port, limit=_BUFFER)
                        _detect_dead_peer(writer)
                    if context is not None:
                        await writer.start_tls(context, server_hostname=self._config.server_name or self.host)
                return Connection(reader, writer, self.place)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                raise Unreachable(f"{self.place} does not answer within {CONNECTING:.0f} s") from None
            raise

    def close(self) -> None:
        for connection in self._free:
            connection.abort()
        self._free.clear()

    async def _connect_through(self, proxy: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(proxy)
        if url.scheme not in ("http", "https") or not url.hostname:
            message = f"the proxy {url.scheme}://{url.hostname or ''} is not supported"
            raise ConfError(message, "use one of http:// or https://, or except the server in NO_PROXY")
        secure = ssl.create_default_context() if url.scheme == "https" else None
        port, place = url.port or (443 if secure else 80), f"the proxy {url.hostname}"
        with broken(place, sent=False):
            reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure, limit=_BUFFER)
        _detect_dead_peer(writer)
        headers = [("Host", self.authority)]
        if url.username:
            word = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
            headers.append(("Proxy-Authorization", "Basic " + base64.b64encode(word).decode()))
        head = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)
        writer.write(f"CONNECT {self.authority} HTTP/1.1\r\n".encode() + head + b"\r\n")
        try:
            with broken(place, sent=False):
                answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
            if answer.split(" ")[1:2] != ["200"]:
                raise Unreachable(f"{place} does not let us through to {self.authority}: {answer.partition(' ')[2]}")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    def _context(self, presented: Presented) -> ssl.SSLContext | None:
        if not self.secure:
            return None
        if self._trusted is None or self._trusted[0] != presented.certificate:
            self.close()
            self._trusted = (presented.certificate, _tls(self._config, presented.certificate))
        return self._trusted[1]


def _tls(config: Config, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """Return a context without VERIFY_X509_STRICT, which the certificates of many clusters do not pass."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    try:
        if config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif config.ca is not None:
            context.load_verify_locations(cadata=config.ca)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError):
        raise ConfError(f"{config.source}: its certificate authority is not a certificate", "correct it") from None
    if certificate is not None:
        descriptor = os.memfd_create("certificate")  # the key is never on a disk
        try:
            os.write(descriptor, b"\n".join(certificate))
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        except ssl.SSLError:
            raise ConfError(f"{config.source}: client certificate and key are not a pair", "log in anew") from None
        finally:
            os.close(descriptor)
    return context


def _detect_dead_peer(writer: asyncio.StreamWriter) -> None:
    """Have TCP notice a peer that is gone."""
    tcp_socket = writer.get_extra_info("socket")
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE),
    ):
        with contextlib.suppress(OSError):
            tcp_socket.setsockopt(level, option, value)


@contextlib.contextmanager
def broken(place: str, *, sent: bool) -> Iterator[None]:
    """Turn failures between us and the server into Unreachable or ConfError, in words."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {place} is not trusted: {error.verify_message}"
        raise ConfError(message, "name its authority in the kubeconfig: certificate-authority") from None
    except ssl.SSLError as error:
        raise Unreachable(f"{place} does not speak TLS with us: {error.reason or error}", sent=sent) from None
    except socket.gaierror as error:
        message = f"{place} is unknown: {error.strerror}"
        raise Unreachable(message, "check its name in the kubeconfig") from None
    except asyncio.IncompleteReadError:
        raise Unreachable(f"{place}: it closed the connection", sent=sent) from None
    except (h11.RemoteProtocolError, asyncio.LimitOverrunError) as error:
        raise Unreachable(f"{place} does not speak HTTP: {error}", sent=sent) from None
    except h11.LocalProtocolError:  # its message repeats what was to be sent, a token for example
        raise Unreachable(f"{place}: our request is not valid HTTP", sent=sent) from None
    except OSError as error:
        if isinstance(error, TimeoutError) and not error.args:  # a limit of our own, reported by the code that set it
            raise
        raise Unreachable(f"{place}: {_reason(error)}", sent=sent) from None


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else str(error) or "the connection broke"
