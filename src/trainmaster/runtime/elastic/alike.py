"""Compare what the members of a round train, before they share a state or add up anything.

Each member brings a digest of its *form* to the rendezvous: rows that say what its parameters are, and what else must be the same. Where
all digests are equal this costs nothing. Where they differ, one sum of bytes brings all forms to all members, and each raises the same
error. Members that have the state of the training already are not ended by newcomers: then those alone raise it that differ from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .rounds import Member

_SHOWN = 3  # differences in a message


class Form:
    """Rows of `(what, value, name)`: what and value must be the same in all members; the name is only shown.

    `brief` is for the payload of a join: plain data.
    """

    def __init__(self, rows: Sequence[tuple[str, str, str]]) -> None:
        self._text = json.dumps(rows).encode()
        compared = json.dumps([row[:2] for row in rows]).encode()
        self.brief = [hashlib.sha256(compared).hexdigest()[:32], len(self._text)]

    def is_alike(
        self, members: Sequence[Member], rank: int, briefs: Sequence[Any], have_state: Sequence[bool], add_up: Callable[[bytearray], None],
    ) -> bool:  # fmt: skip
        """Return True where the forms of all members are equal, False where those that differ from the training's are about to leave.

        Raises ValueError, with the same text, in those, and in all where nobody has the state of a training yet. `briefs`, `have_state`: of
        the members by rank. `add_up` makes bytes their sum over all members, in place; what it raises passes.
        """
        digests = [digest for digest, _ in briefs]
        if len({*digests}) <= 1:
            return True
        ends = [0, *itertools.accumulate(length for _, length in briefs)]
        texts = bytearray(ends[-1])
        texts[ends[rank] : ends[rank + 1]] = self._text
        add_up(texts)
        with contextlib.suppress(Exception):  # somebody has left, who knew that all have the texts, or has died
            add_up(bytearray(1))  # nobody leaves, which breaks the round, before all have them
        if {digest for digest, has_state in zip(digests, have_state, strict=True) if has_state} == {digests[rank]}:
            return False
        forms = [json.loads(texts[first:end]) for first, end in itertools.pairwise(ends)]
        raise ValueError(
            f"members differ in what they train: {_differences(members, forms)};"
            " all must make the same model and optimizer, and give Training the same"
        )


def _differences(members: Sequence[Member], forms: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return `parameter 3 "fc.weight" is float32 (10, 64) at worker:0, float16 (10, 64) at worker:1`, of the first ones that differ."""
    has_copies = any(member.copy for member in members)
    names = [f"{member.task} (process {member.copy})" if has_copies else member.task for member in members]
    texts = []
    for rows in itertools.zip_longest(*forms, fillvalue=("", "missing", "")):
        places: dict[tuple[str, str], list[str]] = {}  # part and value -> the members that have them
        for name, (part, value, _) in zip(names, rows, strict=True):
            places.setdefault((part, value), []).append(name)
        if len(places) > 1:
            heads = {part: f"{part} {json.dumps(name)}" if name else part for part, _, name in reversed(rows) if part}
            values = [(heads.get(part, ""), f"{value} at {' and '.join(at)}") for (part, value), at in places.items()]
            if len(heads) == 1:
                texts.append(f"{heads.popitem()[1]} is {', '.join(value for _, value in values)}")
            else:
                texts.append(", ".join(f"{head} is {value}" for head, value in values))
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
