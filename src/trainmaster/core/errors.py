"""The errors that users see. Each says what happened, where, and what to do; its anchor is a section of docs/errors.md."""

import errno

AWAY = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ENOTCONN,
})  # of a storage that may come back; ENOTCONN: of a mount in user space whose server is gone  # fmt: skip


class TrainmasterError(Exception):
    """A failure in up to three lines: the `message`, the `place` that it concerns, and the `mend`; "" where there is none.

    `anchor` is its name on the page of errors, `status` the exit status of a command that ends with it.
    """

    status = 3

    def __init__(self, message: str, *, place: str = "", mend: str = "", anchor: str = "") -> None:
        super().__init__(message)
        self.message, self.place, self.mend, self.anchor = message, place, mend, anchor

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.message, self.place, self.mend) if part)


class BadInput(TrainmasterError, ValueError):
    """The user's input cannot be used; nothing was started."""

    status = 2


class NotFound(BadInput, LookupError):
    """A job, task or file that was named does not exist."""


class JobFailed(TrainmasterError):
    """The job ended and did not succeed."""

    status = 1


class EngineFailed(TrainmasterError, RuntimeError):
    """The engine could not carry out a request; the job itself may be fine."""


class StorageFailed(EngineFailed, OSError):
    """A storage could not be read or written."""
