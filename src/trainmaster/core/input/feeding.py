"""Decide which ring gets which batches of a feed, how many rows each rank may read, and where a feed ends.

A *feed* belongs to a role: each attempt of its tasks has a *ring*, which its agent owns. A *round* is one pass over an RDD or DataFrame; a
*feeder* is a Spark task that puts the batches of one partition, numbered from 0, into rings. Here is all that the master knows of them, as
plain data. It is soft state: the log has what was fed and read (`feed-read`), and where a feed ended (`feed-ended`).

- A partition is cut into *pieces*, each of which belongs to one ring. A feeder asks (`claim`) for its next batch: it is skipped where it
  was read, or is in a ring that lives; else it goes to the ring of its piece, or to a ring that has room.
- A feeder prefers the rings of its own host. It reaches a ring of another host by a stream. Such a ring gets `AHEAD` batches at a time
  while its reader has next to nothing to read, or as many as it has room for where the feeder's host has no ring.
- The newest feeder of a partition is the only one that is heard, so a batch never goes into two rings. Rings refuse older feeders too.
- A ring ends with its attempt. Batches that nobody has read from it by then belong to no ring: their feeder, or the driver, hears that
  the partition must run again.
- A feed may *answer* instead: each partition that is fed, by any try, is one *exchange* with one ring, which gives a result for each row.
  The feeder keeps the rows that have no result yet, so nothing is kept of an exchange here; and its readers agree on nothing.
- Where the ranks *agree*, each may read as many rows as the rank with the fewest was given (`permit`), so none gets ahead, and the end is
  the same row for all. Rows beyond it are left over. So a ring has few batches beyond its permit. It has more where nobody has fewer rows
  and its reader waits: that reader waits only as long as a permit is on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from trainmaster.core.input.ranges import LARGEST, RangeSet

AHEAD = 2  # batches that a ring may have beyond the permit at first, and that a reader on another host than the feeder's should have
MOST_AHEAD = 32  # batches that a ring whose reader waits may have beyond the permit
SHARE_AHEAD = 16  # the part of the permitted rows that it may have beyond these: of little data little is left over
RingKey: TypeAlias = tuple[str, int]  # task, attempt
Answer: TypeAlias = dict[str, Any]
_STOP: Answer = {"do": "stop"}


@attrs.frozen
class Claim:
    """A feeder's question where its next batch goes. All batches that it put before are in rings.

    `feeder`: rises with each try of the partition. `size` in bytes. `full`: its piece's ring has no "room" for it, is
    "ahead", or is that while its reader has "starved". `gone`: the ring to which its connection ended. `unreachable`: tasks whose rings
    it cannot connect to. `has_waited`: it asks again after a wait.
    """

    round: int
    partition: int
    batch: int
    feeder: int
    size: int
    rows: int
    host: str = ""
    full: str = ""
    has_waited: bool = False
    gone: RingKey | None = None
    unreachable: Collection[str] = ()


@attrs.define
class _Ring:
    base: int  # rows that the others had been permitted when it opened
    supply: int = 0  # rows that were put into it
    delivered: int = 0  # rows that its reader got
    room: int = 0  # bytes
    largest: int = 0  # bytes that a batch may have
    host: str = ""
    socket: str = ""
    address: str = ""  # host:port of its agent, for feeders of other hosts; "": it has none
    has_stopped: bool = False
    ahead: int = 0  # rows that it may have beyond the permit, where these are more than `AHEAD` batches
    exchanges: int = 0  # that it was given
    is_over: bool = False  # the end was sent to its reader
    pending: dict[int, tuple[int, int, int]] = attrs.field(
        factory=dict
    )  # by feeder: bytes and rows granted, and the supply that shows them

    @property
    def rows(self) -> int:
        return self.base + self.supply

    def grant(self, ask: Claim) -> None:
        """Note that a feeder is about to put a batch, until the ring's supply shows it."""
        self.pending.pop(ask.feeder, None)
        rows = max(ask.rows, 1)  # who asks for the first time does not know yet how many
        under_way = sum(count for _, count, _ in self.pending.values())
        self.pending[ask.feeder] = ask.size, rows, self.supply + under_way + rows


@attrs.define
class _Piece:
    """Batches of a partition: `first` up to `end` (None: to the partition's end). `is_fed`: all are in the ring."""

    first: int
    end: int | None
    ring: RingKey | None
    is_fed: bool = False
    why: str = ""  # it belongs to no ring

    def has(self, batch: int) -> bool:
        return self.first <= batch and (self.end is None or batch < self.end)


@attrs.define
class _Partition:
    pieces: list[_Piece] = attrs.field(factory=lambda: [_Piece(0, None, None)])
    read: RangeSet = attrs.field(factory=RangeSet)
    feeder: int = -1
    count: int | None = None  # batches, once a feeder has put them all

    @property
    def is_read(self) -> bool:
        return self.count is not None and self.read.covers(0, self.count)

    def lost(self, end: int) -> str | None:
        """Return why one of the batches below `end` is neither read nor in a ring; None where all are."""
        for piece in self.pieces:
            limit = end if piece.end is None else min(piece.end, end)
            if piece.ring is None and piece.first < limit and not self.read.covers(piece.first, limit):
                return piece.why or "it was not fed"
        return None


class Feed:
    """One feed of a role."""

    def __init__(self, agreed: bool) -> None:
        self.agreed = agreed
        self.permit = 0  # rows that each rank may read
        self.is_fixed = False  # the permit rises no more
        self.has_ended = self.has_stopped = False
        self._rings: dict[RingKey, _Ring] = {}
        self._rounds: dict[int, list[_Partition]] = {}  # those that were not read whole: the others are forgotten
        self._begun = 0  # rounds so far
        self._last_key = ""  # of the question that began the last one
        self._expected = 0  # tasks that read, or will
        self._exchanges = 0

    # -- rings --

    @property
    def rings(self) -> Collection[RingKey]:
        """Return the rings that live."""
        return self._rings.keys()

    def heard(self, key: RingKey, word: Mapping[str, Any]) -> None:
        """Take in an agent's word of its ring: `host`, `socket`, `address`, `supply`, `room`, `largest` and `stopped`. It is absolute."""
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = _Ring(self.permit)
        ring.host, ring.socket, ring.address = word["host"], word["socket"], word["address"]
        ring.room, ring.largest = word["room"], word["largest"]
        ring.supply, ring.delivered = max(ring.supply, word["supply"]), word["delivered"]
        ring.pending = {feeder: grant for feeder, grant in ring.pending.items() if grant[2] > ring.supply}
        if word["stopped"] and not ring.has_stopped:
            ring.has_stopped = True
            self.has_stopped = self.has_stopped or self.agreed
            self._free(key, f"{key[0]} wants nothing more")

    def lose(self, key: RingKey, why: str) -> None:
        """Note that a ring is gone, with all in it that was not read."""
        if self._rings.pop(key, None) is not None:
            self._free(key, why)

    def restart(self, why: str) -> None:
        """Note that all ranks begin anew: what was read stays read, and they count rows from 0."""
        for key in list(self._rings):
            self.lose(key, why)
        self.permit, self.is_fixed, self.has_ended = 0, self.has_stopped, self.has_stopped

    def has_read(self, rows: Iterable[Sequence[int]]) -> None:
        """Note batches that were read, or left over: [round, partition, first, end]."""
        for number, partition, first, end in rows:
            if partition < len(partitions := self._rounds.get(number, [])):
                partitions[partition].read.add(first, end)
                self._forget(number)

    def advance(self, expected: Collection[str]) -> None:
        """Raise the permit to the fewest rows that one of the `expected` tasks was given. Where none is left, nobody wants more."""
        self._expected = len(expected)
        stopped = {task for (task, _), ring in self._rings.items() if ring.has_stopped}
        wanting = [task for task in expected if task not in stopped]
        self.has_stopped = self.has_stopped or not wanting
        if self.agreed and not self.is_fixed:
            rows = {task: ring.rows for (task, _), ring in self._rings.items()}
            self.permit = max(self.permit, min((rows.get(task, self.permit) for task in wanting), default=0))

    def is_read(self, expected: Collection[str]) -> bool:
        """Tell whether each of the tasks has read as far as it is permitted to, or wants nothing more; and so none begins anew."""
        if not self.agreed:
            return not self._rounds
        read = {
            key[0] for key, ring in self._rings.items() if ring.has_stopped or ring.base + ring.delivered >= self.permit
        }
        return read >= set(expected)

    def has_lost(self) -> bool:
        """Tell whether some partition must run again."""
        return any(self.figures(number)["lost"] for number in self._rounds)

    def limits(self) -> dict[RingKey, tuple[int | None, bool]]:
        """Return for each ring the rows that its reader may have (None: all), and whether these are the last."""
        # Without an agreement some reader gets what was lost: that one hears the end later.
        ends = self.has_ended and (self.agreed or self.has_stopped or not self.has_lost())
        for ring in self._rings.values():
            ring.is_over = ring.is_over or ends
        return {
            key: (self.permit - ring.base if self.agreed else None, ring.is_over) for key, ring in self._rings.items()
        }

    # -- rounds --

    def begin(self, partitions: int, key: str = "") -> int:
        """Return the number of a new round. Raises ValueError where the feed has ended, or answers.

        `key`: of the question, which has the same answer where it comes again; "": it does not.
        """
        if key and key == self._last_key:
            return self._begun - 1
        if self._exchanges:
            raise ValueError("this feed gives results: train with another feed than that of inference")
        if self.is_fixed and not self.has_stopped:
            raise ValueError("the feed has ended already: make a new one for a job that still runs")
        if partitions:
            self._rounds[self._begun] = [_Partition() for _ in range(partitions)]
        self._begun, self._last_key = self._begun + 1, key
        return self._begun - 1

    def drop(self, number: int) -> None:
        """Forget a round that its driver gives up. Rows in rings are read all the same."""
        self._rounds.pop(number, None)

    def rounds(self) -> dict[str, Any]:
        """Return the rounds that were not read whole (`open`), and the partitions of these that must run again ([round, partitions])."""
        lost = [[number, lost] for number in self._rounds if (lost := self.figures(number)["lost"])]
        return {"open": list(self._rounds), "lost": lost}

    def fix(self) -> int | None:
        """Let the feed end where the ranks are permitted to read to now. Return that row; None where they do not agree on one."""
        self.is_fixed = True
        return self.permit if self.agreed else None

    def end(self) -> None:
        """End the feed: that is on the log."""
        self.is_fixed = self.has_ended = True

    def figures(self, number: int) -> dict[str, Any]:
        """Return how many partitions of a round were read, and those that must run again. Raises LookupError.

        The last batches of a reader that got all of its ring count too: programs release these when they hear the end. Where ranks agree,
        all batches in rings count.
        """
        partitions = self._partitions(number)
        if self.has_stopped or (self.has_ended and self.agreed):
            return {"partitions": len(partitions), "read": len(partitions), "lost": [], "why": ""}
        lost = {
            index: why for index, partition in enumerate(partitions)
            if not partition.is_read and (why := _lost(partition)) is not None
        }  # fmt: skip
        read = sum(partition.is_read or self._is_handed_out(partition) for partition in partitions)
        return {"partitions": len(partitions), "read": read, "lost": list(lost), "why": next(iter(lost.values()), "")}

    # -- feeders --

    def claim(self, ask: Claim) -> Answer | None:
        """Return what a feeder does with its next batch; None where it must wait. Raises LookupError where there is no such partition.

        `skip` up to the batch `until`; `put` it, and those up to `until`, into a ring; `stop`, since nobody wants more, or all was read;
        `again`: the partition must run again; `superseded`; or `unreachable`.
        """
        if not (partitions := self._partitions(ask.round)):
            return _STOP
        partition = partitions[ask.partition]
        if (refusal := self._refusal(partition, ask.feeder, ask.batch)) is not None:
            return refusal
        if ask.gone in self._rings:
            return None
        for first, end in partition.read.within(ask.batch, LARGEST):
            if first == ask.batch:
                return {"do": "skip", "until": end, "count": partition.count}
        piece = next(piece for piece in partition.pieces if piece.has(ask.batch))
        if piece.is_fed:
            return {
                "do": "skip",
                "until": partition.count if piece.end is None else piece.end,
                "count": partition.count,
            }
        return self._place(partition, piece, ask)

    def exchange(self, ask: Claim) -> Answer | None:
        """Return the ring that is to answer the rows of a partition; None where it must wait. Raises ValueError for a feed of rounds.

        `put` into a ring, as the round that is named; `fail`: nobody reads any more; or `unreachable`. These fields of the claim matter:
        `feeder`, `size` of the first batch, `rows`, `host`, `has_waited`, `gone` and `unreachable`.
        """
        if self._begun:
            raise ValueError("this feed trains: ask for results of another feed")
        self.agreed = False
        if self.is_fixed or self.has_stopped:
            return {
                "do": "fail",
                "why": "nobody reads the feed any more, and rows have no result: ask for them before its end",
            }
        if ask.gone in self._rings and not self._rings[ask.gone].has_stopped:
            return None
        key = self._choose(ask)
        if key is None:
            return self._all_away(ask)
        ring = self._rings[key]
        ring.grant(ask)
        ring.exchanges += 1
        self._exchanges += 1
        return {
            "do": "put", "ring": list(key), "host": ring.host, "socket": ring.socket, "address": ring.address, "round": self._exchanges
        }  # fmt: skip

    def settle(self, number: int, partition: int, feeder: int, count: int, supplies: Mapping[RingKey, int]) -> Answer:
        """Note that a feeder has put all `count` batches. Return `done`, or an answer as of `claim`.

        `supplies`: the rows in the rings, as they reported after the last batch.
        """
        if not (partitions := self._partitions(number)):
            return {"do": "done"}
        entry = partitions[partition]
        if entry.count not in (None, count):
            why = f"it gave {entry.count} batches before and {count} now: persist the data, so that it gives the same rows again"
            return {"do": "differs", "why": why}
        for key, rows in supplies.items():
            if (ring := self._rings.get(key)) is not None:
                ring.supply = max(ring.supply, rows)
        self._forget_grants(feeder)  # of an empty partition no supply will ever show it
        if (refusal := self._refusal(entry, feeder, count)) is not None:
            return {"do": "done"} if refusal is _STOP else refusal
        entry.count = count
        entry.pieces = [piece for piece in entry.pieces if piece.first < count] or entry.pieces[:1]
        entry.pieces[-1].end = None
        for piece in entry.pieces:
            piece.is_fed = piece.ring is not None
        self._forget(number)
        return {"do": "done"}

    # -- below --

    def _partitions(self, number: int) -> list[_Partition]:
        """Return the partitions of a round; none where it was read whole. Raises LookupError where there was no such round."""
        if not 0 <= number < self._begun:
            raise LookupError(number)
        return self._rounds.get(number, [])

    def _forget(self, number: int) -> None:
        """Keep nothing of a round that was read whole: a stream has any number of them."""
        if all(partition.is_read for partition in self._rounds[number]):
            del self._rounds[number]

    def _forget_grants(self, feeder: int) -> None:
        """Count no batch of a feeder as under way: it has put what it wanted, or another one has taken over."""
        for ring in self._rings.values():
            ring.pending.pop(feeder, None)

    def _refusal(self, partition: _Partition, feeder: int, before: int) -> Answer | None:
        if self.has_stopped or (self.has_ended and self.agreed):
            return _STOP
        if feeder < partition.feeder:
            return {"do": "superseded"}
        is_new = feeder > partition.feeder
        if is_new:
            self._forget_grants(partition.feeder)
        partition.feeder = feeder
        if not is_new:
            for piece in partition.pieces:
                piece.is_fed = piece.is_fed or (
                    piece.ring is not None and piece.end is not None and piece.end <= before
                )
        return None if (why := partition.lost(before)) is None else {"do": "again", "why": why}

    def _place(self, partition: _Partition, piece: _Piece, ask: Claim) -> Answer | None:
        """Return the ring for a batch that is in none; cut its piece where it goes elsewhere than the batches before."""
        if piece.ring is not None and not self._reaches(ask, piece.ring):  # older feeders may still write there
            return {"do": "unreachable", "why": self._where(piece.ring)}
        if piece.ring is None or ask.full:
            if (
                ask.full == "room" and piece.ring is not None and not ask.has_waited
            ):  # its agent's next word tells when there is some
                ring = self._rings[piece.ring]
                ring.room = min(ring.room, ask.size - 1)
            if ask.full == "starved" and piece.ring is not None and not ask.has_waited:
                ring = self._rings[piece.ring]
                if ring.rows <= self.permit:
                    most = min(MOST_AHEAD * ask.rows, self.permit // SHARE_AHEAD)
                    ring.ahead = max(ring.ahead, min(2 * max(ring.ahead, AHEAD * ask.rows), most))
            key = self._choose(ask)
            if key is None:
                return self._all_away(ask)
            if key != piece.ring and ask.batch > piece.first:
                new = _Piece(ask.batch, piece.end, key)
                partition.pieces.insert(partition.pieces.index(piece) + 1, new)
                piece.end, piece.is_fed, piece = ask.batch, piece.ring is not None, new
            if self._has_near(ask) and not self._is_near(ask, key) and (piece.end or LARGEST) > ask.batch + AHEAD:
                partition.pieces.insert(
                    partition.pieces.index(piece) + 1, _Piece(ask.batch + AHEAD, piece.end, None, why=piece.why)
                )
                piece.end = ask.batch + AHEAD
            piece.ring = key
            self._rings[key].grant(ask)
        ring, key = self._rings[piece.ring], piece.ring
        limit = self.permit - ring.base if self.agreed else None
        return {
            "do": "put",
            "ring": list(key),
            "host": ring.host,
            "socket": ring.socket,
            "address": ring.address,
            "until": piece.end,
            "limit": limit,
            "ahead": ring.ahead,
        }

    def _choose(self, ask: Claim) -> RingKey | None:
        """Return the ring that needs a batch most, on the feeder's own host where one takes it.

        That is the one with the fewest rows where ranks agree, else the one with the most room; of equal ones that with fewer rows.
        """
        if self.agreed and len(self._rings) < self._expected:
            return None  # what went to the others meanwhile might be left over
        best: tuple[Any, RingKey] | None = None
        has_near = self._has_near(ask)
        for key, ring in self._rings.items():
            granted = (
                [] if ask.has_waited else [grant for feeder, grant in ring.pending.items() if feeder != ask.feeder]
            )
            room = ring.room - sum(size for size, *_ in granted)
            rows = ring.rows + sum(count for _, count, _ in granted)
            is_near = self._is_near(ask, key)
            is_ahead = self.agreed and rows - self.permit >= max(ring.ahead, AHEAD * max(ask.rows, 1))
            if (
                ring.has_stopped
                or ring.is_over
                or not self._reaches(ask, key)
                or is_ahead
                or (has_near and not is_near and rows - ring.base - ring.delivered >= AHEAD * max(ask.rows, 1))
                or (room < ask.size <= ring.largest)
            ):
                continue
            need = (not is_near, rows if self.agreed else 0, -room, ring.exchanges, rows, key)
            best = min(best, (need, key)) if best else (need, key)
        return best[1] if best else None

    def _all_away(self, ask: Claim) -> Answer | None:
        """Return `unreachable` where all rings that are expected are there and out of reach."""
        away = [key for key in self._rings if not self._reaches(ask, key)]
        are_all = len(away) == len(self._rings) >= max(self._expected, 1)
        return {"do": "unreachable", "why": self._where(away[0])} if are_all else None

    def _is_handed_out(self, partition: _Partition) -> bool:
        if (
            partition.count is None or self.agreed
        ):  # ranks that agree read no further than the feed's end, which comes after this
            return partition.count is not None
        for piece in partition.pieces:
            end = partition.count if piece.end is None else piece.end
            ring = None if piece.ring is None else self._rings[piece.ring]
            if not partition.read.covers(piece.first, end) and (ring is None or ring.delivered < ring.supply):
                return False
        return True

    def _has_near(self, ask: Claim) -> bool:
        return any(self._is_near(ask, key) and not ring.has_stopped for key, ring in self._rings.items())

    def _is_near(self, ask: Claim, key: RingKey) -> bool:
        return self._rings[key].host == ask.host and key[0] not in ask.unreachable

    def _reaches(self, ask: Claim, key: RingKey) -> bool:
        ring = self._rings[key]
        return (ring.host == ask.host or bool(ring.address)) and key[0] not in ask.unreachable

    def _where(self, key: RingKey) -> str:
        address = self._rings[key].address
        place = (
            f"at {address}: hosts must reach each other's agents"
            if address
            else "on another machine, without an address"
        )
        return f"the ring of {key[0]} is not reached from where the partition is, {place}"

    def _free(self, key: RingKey, why: str) -> None:
        for partitions in self._rounds.values():
            for partition in partitions:
                for piece in partition.pieces:
                    if piece.ring == key:
                        piece.ring, piece.is_fed, piece.why = None, False, why


def _lost(partition: _Partition) -> str | None:
    return "it was not fed" if partition.count is None else partition.lost(partition.count)


def is_range(row: Any) -> bool:
    """Tell whether a row of a report names batches: [round, partition, first, end]."""
    return isinstance(row, list) and len(row) == 4 and all(type(n) is int and 0 <= n < LARGEST for n in row)
