"""A master in a container of a secure cluster: no ticket, only the tokens that it was given. What it found stands in its end's diagnostics.

With each protection it asks the NameNode, by HDFS's token, and the ResourceManager, by that one's; it registers by the
master's token, starts a container by the node's, which reads a file from HDFS, and ends well if that did.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from unmanaged import Master, register

from trainmaster.hadoop import conf, yarn
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.hdfs import Namenode
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security import delegation
from trainmaster.hadoop.security.auth import ByToken
from trainmaster.hadoop.security.credentials import AM_RM_TOKEN, RM_DELEGATION_TOKEN, Credentials


async def asked(here: conf.Configuration, held: Credentials, file: str, words: list[str]) -> list[str]:
    """With which protections HDFS and the ResourceManager were asked."""
    found = []
    of_hdfs = delegation.token_for(held, here)
    of_yarn = held.of_kind(RM_DELEGATION_TOKEN)
    for word in words:
        async with Namenode.of(here, ByToken(of_hdfs, (word,))) as namenode:
            [block] = await namenode.blocks(file)
            found.append(f"hdfs {word} {block.length}")
        async with yarn.ResourceManager.of(here, ByToken(of_yarn, (word,))) as manager:
            metrics = (await manager.get_cluster_metrics()).cluster_metrics
            found.append(f"yarn {word} {metrics.num_active_nms > 0}")
    return found


async def main(held: Credentials, file: str, size: int, modified: int, words: list[str]) -> None:
    here = conf.load()
    scheduler = yarn.Scheduler.of(here, held.of_kind(AM_RM_TOKEN))
    master = Master(here, None, None, held.of_kind(AM_RM_TOKEN), scheduler, await register(scheduler))
    try:
        try:
            found = await asked(here, held, file, words)
        except HadoopError as error:
            await master.finish(yarn.FinalStatus.FAILED, repr(error))
            return
        master.ask(number=1)
        await master.until(lambda: 1 in master.granted)
        host, port = conf.name_nodes(here)[0]
        resource = y.LocalResourceProto(
            resource=y.URLProto(scheme="hdfs", host=host, port=port, file=file),
            size=size,
            timestamp=modified,
            type=2,
            visibility=3,
        )
        local = [y.StringLocalResourceMapProto(key="data.txt", value=resource)]
        tokens = held.without_kind(AM_RM_TOKEN).write()
        await master.start(1, "grep -q 'out of HDFS' data.txt", localResources=local, tokens=tokens)
        await master.until(lambda: master.ended)
        ended = master.ended[1]
        status = yarn.FinalStatus.FAILED if ended.exit_status else yarn.FinalStatus.SUCCEEDED
        await master.finish(status, json.dumps([*found, f"container {ended.exit_status} {ended.diagnostics}".strip()]))
    finally:
        await master.close()


given = Credentials.read(Path(os.environ["HADOOP_TOKEN_FILE_LOCATION"]).read_bytes())
asyncio.run(main(given, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
