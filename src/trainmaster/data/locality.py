"""Find the machines that have a task's part of an input on their disks, so that an engine may prefer them.

HDFS tells for each block of a file which hosts have a copy; the bytes of a part that a host has are added up over its pieces. The result
is a preference only: every host can read every block. On other storages no host is nearer than another, except where a file names its
hosts itself, as the splits of Hadoop's own formats do.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from trainmaster.core.input.splits import File, Piece
from trainmaster.hadoop.errors import HadoopError

MOST = 3  # hosts preferred, as a block has copies
AT_ONCE = 64  # requests under way to the NameNode
LIMIT = 10.0  # s for all of them; without an answer there is no preference
SCHEME = "hdfs://"


def preferred_hosts(parts: Sequence[Sequence[Piece | File]], most: int = MOST) -> list[tuple[str, ...]]:
    """Return for each part the hosts that have most of its bytes, the most first; none where that is not known. Raises no error of HDFS."""
    blocks = _locate_blocks({entry.path for part in parts for entry in part if entry.path.lower().startswith(SCHEME)})
    return [_rank_hosts(part, blocks, most) for part in parts]


Blocks = Sequence[tuple[int, int, tuple[str, ...]]]  # of a file: the offset of a block, its length, its hosts


def _rank_hosts(part: Iterable[Piece | File], blocks: dict[str, Blocks], most: int) -> tuple[str, ...]:
    bytes_by_host: Counter[str] = Counter()
    for entry in part:
        if isinstance(entry, File) and entry.hosts:
            bytes_by_host.update(dict.fromkeys(entry.hosts, max(entry.size, 1)))
            continue
        piece = Piece(entry.path) if isinstance(entry, File) else entry
        for begin, length, hosts in blocks.get(piece.path, ()):
            end = begin + length if piece.end is None else min(begin + length, piece.end)
            if (shared := end - max(begin, piece.start)) > 0:
                bytes_by_host.update(dict.fromkeys(hosts, shared))
    return tuple(sorted(bytes_by_host, key=lambda host: (-bytes_by_host[host], host))[:most])


def _locate_blocks(urls: set[str]) -> dict[str, Blocks]:
    blocks: dict[str, Blocks] = {}
    if urls:
        thread = threading.Thread(target=_ask_namenodes, args=(sorted(urls), blocks), daemon=True, name="locality")
        thread.start()  # a thread of its own, for the caller may be in an event loop
        thread.join(LIMIT)
    return dict(blocks)


def _ask_namenodes(urls: Sequence[str], blocks_by_url: dict[str, Blocks]) -> None:
    from trainmaster.hadoop.hdfs import Namenode  # imported here: not every container has the Hadoop client
    from trainmaster.log.dfs import open_dfs
    from trainmaster.log.openfile import auth_for, configuration

    async def ask() -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        conf = configuration()
        places = {url: open_dfs(url) for url in urls}
        authorities = {dfs.where for dfs, _ in places.values()}
        for authority in authorities:
            namenodes = SCHEME + authority
            async with Namenode.of(conf, auth_for(conf, namenodes), namenodes) as namenode:

                async def fetch(url: str, namenode: Namenode = namenode) -> None:
                    async with slots:
                        blocks = await namenode.blocks(places[url][1])
                    blocks_by_url[url] = [(block.offset, block.length, block.hosts) for block in blocks]

                own_urls = [url for url in urls if places[url][0].where == authority]
                await asyncio.gather(*map(fetch, own_urls), return_exceptions=True)

    try:
        asyncio.run(asyncio.wait_for(ask(), LIMIT))
    except (HadoopError, OSError, TimeoutError, ValueError):  # only a preference: without an answer there is none
        return
