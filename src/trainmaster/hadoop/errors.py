"""The errors of a Hadoop cluster, as a closed family: callers of this library catch HadoopError.

A remote exception arrives as the name of a Java class and a text with its Java stack. The stack is the server's own business: we keep the
class and the first line of its message.
"""

from __future__ import annotations


class HadoopError(Exception):
    """The base of all errors here. `message` is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfError(HadoopError):
    """The cluster's configuration is missing, unreadable or contradicts itself. `mend`: what to do; by default, correct the place that the
    message names.
    """

    def __init__(self, message: str, mend: str = "correct it there") -> None:
        super().__init__(message)
        self.mend = mend


class Unreachable(HadoopError):
    """The server does not answer: there is no connection, or it broke, or it is silent. `sent`: the server may have done what was asked."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class AuthenticationFailed(HadoopError):
    """The server does not believe who we say we are, or is not the server that it should be."""


class WeakProtection(AuthenticationFailed):
    """The server offers less protection of what is on the wire than we take."""


class KdcUnreachable(AuthenticationFailed):
    """No KDC answers, or none is known."""


class Garbled(HadoopError):
    """The bytes are not Hadoop's protocol."""


class RemoteError(HadoopError):
    """The server raised an exception. `class_name` is Java's; `fatal`: the server closed the connection over it."""

    def __init__(self, class_name: str, message: str, fatal: bool = False) -> None:
        super().__init__(message)
        self.class_name = class_name
        self.fatal = fatal

    @property
    def name(self) -> str:
        """Return the class without its package."""
        return self.class_name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


REFUSALS = (
    "org.apache.hadoop.security.AccessControlException",
    "org.apache.hadoop.security.authorize.AuthorizationException",
    "org.apache.hadoop.security.token.SecretManager$InvalidToken",
    "javax.security.sasl.SaslException",
)


def of_remote(class_name: str, text: str, *, fatal: bool, place: str) -> RemoteError | AuthenticationFailed:
    """Return the error that a reply stands for. A fatal refusal concerns the whole connection, and its message names the server; other
    errors concern one call.
    """
    line = text.partition("\n")[0].strip()
    line = line.removeprefix(class_name).removeprefix(":").strip()
    if fatal and class_name in REFUSALS:
        return AuthenticationFailed(f"{place} refuses us: {line or class_name}")
    return RemoteError(class_name, line, fatal)
