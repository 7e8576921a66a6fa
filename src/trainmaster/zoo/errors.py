"""The error of a model that cannot be used, in the form of the errors that commands print.

Programs of users have not got `trainmaster.core`, so this is a class of its own with the same parts: a command prints them and exits with
`status`.
"""

from __future__ import annotations


class BadModel(ValueError):
    """A model cannot be used as it is written or named: the `message`, the `place` that it concerns, the `mend`; "" where there is none."""

    status = 2

    def __init__(self, message: str, *, place: str = "", mend: str = "", anchor: str = "") -> None:
        super().__init__(message)
        self.message, self.place, self.mend, self.anchor = message, place, mend, anchor

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.message, self.place, self.mend) if part)


def did_you_mean(name: str, names: list[str], otherwise: str = "", form: str = "{}") -> str:
    """Return a question for the nearest of `names`, or `otherwise` where none is near; case and `_` count little.

    `form`: how the question writes a name.
    """
    from difflib import get_close_matches

    plain = {other.lower().replace("_", ""): other for other in reversed(names)}
    near = get_close_matches(name.lower().replace("_", ""), list(plain), 1, 0.6)
    return f"did you mean {form.format(plain[near[0]])}?" if near else otherwise
