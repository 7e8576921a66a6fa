"""Which machines have a task's part of an input on their disks, so that an engine may prefer them.

HDFS tells for each block of a file who has a copy; the bytes of a part that a host has are added up over its pieces. That is a wish, no
more: every host can read every block. On other storages nobody is nearer than anybody else, but for what says itself where it is, as the
splits of Hadoop's own formats do.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from trainmaster.core.input.splits import File, Piece
from trainmaster.hadoop.errors import HadoopError

MOST = 3  # hosts preferred, as a block has copies
AT_ONCE = 64  # questions on their way to the NameNode
LIMIT = 10.0  # s for all of them; without an answer there is no preference
SCHEME = "hdfs://"


def preferred_hosts(parts: Sequence[Sequence[Piece | File]], most: int = MOST) -> list[tuple[str, ...]]:
    """For each part the hosts that have most of its bytes, the most first; none where that is not known. Raises nothing of HDFS's."""
    found = _located({one.path for part in parts for one in part if one.path.lower().startswith(SCHEME)})
    return [_ranked(part, found, most) for part in parts]


Blocks = Sequence[tuple[int, int, tuple[str, ...]]]  # of a file: where a block begins, its length, who has it


def _ranked(part: Iterable[Piece | File], found: dict[str, Blocks], most: int) -> tuple[str, ...]:
    held: Counter[str] = Counter()
    for one in part:
        if isinstance(one, File) and one.hosts:
            held.update(dict.fromkeys(one.hosts, max(one.size, 1)))
            continue
        piece = Piece(one.path) if isinstance(one, File) else one
        for begin, length, hosts in found.get(piece.path, ()):
            end = begin + length if piece.end is None else min(begin + length, piece.end)
            if (shared := end - max(begin, piece.start)) > 0:
                held.update(dict.fromkeys(hosts, shared))
    return tuple(sorted(held, key=lambda host: (-held[host], host))[:most])


def _located(urls: set[str]) -> dict[str, Blocks]:
    found: dict[str, Blocks] = {}
    if urls:
        thread = threading.Thread(target=_ask, args=(sorted(urls), found), daemon=True, name="locality")
        thread.start()  # of its own, for the caller may be in a loop
        thread.join(LIMIT)
    return dict(found)


def _ask(urls: Sequence[str], found: dict[str, Blocks]) -> None:
    from trainmaster.hadoop.hdfs import Namenode  # here: what speaks to Hadoop is not in every container
    from trainmaster.log.dfs import open_dfs
    from trainmaster.log.openfile import auth_for, configuration

    async def ask() -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        conf = configuration()
        places = {url: open_dfs(url) for url in urls}
        where = {dfs.where for dfs, _ in places.values()}
        for authority in where:
            namenodes = SCHEME + authority
            async with Namenode.of(conf, auth_for(conf, namenodes), namenodes) as namenode:

                async def one(url: str, namenode: Namenode = namenode) -> None:
                    async with slots:
                        blocks = await namenode.blocks(places[url][1])
                    found[url] = [(block.offset, block.length, block.hosts) for block in blocks]

                wanted = [url for url in urls if places[url][0].where == authority]
                await asyncio.gather(*map(one, wanted), return_exceptions=True)

    try:
        asyncio.run(asyncio.wait_for(ask(), LIMIT))
    except (HadoopError, OSError, TimeoutError, ValueError):  # a wish: whoever cannot ask has none
        return
