"""The flags and keys of XLearning 1.0 to 1.4 and of Hbox 1.8.1, as their parsers, classes and documents have them.

Each is accepted or refused with a reason, and the page for its users names it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.integrations import xlearning
from trainmaster.integrations.dialect import OURS, Translation
from trainmaster.integrations.xlearning_conf import (
    FLAGS,
    MACHINERY,
    OPTIONS,
    REFUSED,
    REPEATED,
    SAME,
    SHORT,
)

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "xlearning.md"
_FLAGS = """
    am-cores am-memory amCores amMemory app-name app-type appName appType archiveFiles board-cacheTimeout board-enable
    board-historydir board-index board-logdir board-modelpb board-reloadinterval boardCacheTimeout boardEnable boardHistoryDir
    boardIndex boardLogDir boardModelPB boardReloadInterval cacheArchive cacheFile chiefWorkerMemory chiefworker-memory cluster conf
    container-type containerType create-containerid-dir createContaineridDir docker-image dockerImage driver-cores driver-memory
    driverCores driverMemory duration evaluatorWorkerMemory evaluatorworker-memory files hbox-cmd hboxCmd help host-local-enable
    hostLocalEnable inRenameInputFile input input-strategy inputFormatClass inputStrategy inputformat inputformat-enable
    inputformat-shuffle inputformatEnable inputformatShuffle isRenameInputFile jars launch-cmd launchCmd output output-index
    output-strategy outputFormatClass outputIndex outputStrategy outputformat outputformat-enable outputformatEnable priority
    ps-cores ps-gpus ps-memory ps-num psCores psGpus psMemory psNum queue s3input s3output stream-epoch streamEpoch tf-evaluator
    tfEvaluator user-classpath-first user-ldlibrarypath user-path userClasspathFirst userLDLIBRARYPATH userPath version worker-cores
    worker-gpus worker-memory worker-num workerCores workerGpus workerMemory workerNum
"""
_KEYS = """
    allocate.interval am.cmd am.cmd.enable am.cores am.env am.memory am.nodeLabelException am.nodeLabelExpression app.id
    app.max.attempts app.priority app.queue append.defaultfs.enable board.cache.timeout board.modelpb board.path
    cached.mpi.package.remote.path cachefile.check.enable chief.worker.memory chief.worker.minimum.data
    chief.worker.minimum.file.num cleanup.enable client.hostname client.log.collect cluster.delegation.key.update-interval
    cluster.delegation.token.max-lifetime cluster.delegation.token.renew-interval cluster.name cluster.name.history.webapp.address
    commom.cache.archive.hdfs commom.cache.archive.hdfs.convert.enable container.auto.create.output.dir container.env
    container.extra.java.opts container.extraEnv container.heartbeat.interval container.heartbeat.retry
    container.jvm.memory.fraction container.jvm.memory.minimum container.maxFailures.rate container.mem.usage.warn.fraction
    container.running.log.enable container.type container.update.appstatus.interval container.update.appstatus.retry
    createcontainerid.dir custom.exit digits.image-name docker.image docker.image.name docker.num.per.worker docker.registry.host
    docker.registry.port docker.run.args docker.work.dir docker.worker.dir download.file.retry download.file.thread.nums
    driver.cores driver.memory env.maxlength evaluator.worker.memory execute.node.limit failed.upload file.list.level
    history.address history.admin.acl history.admin.address history.admin.port history.bind-host history.client.thread-count
    history.http.policy history.keytab history.log.delete-monitor-time-interval history.log.dir history.log.max-age-ms history.port
    history.principal history.recovery.enable history.webapp.address history.webapp.https.address history.webapp.https.addresss
    history.webapp.https.port history.webapp.port horovod.cycle.time horovod.extra.ld.lirbary.path horovod.fusion.threshold
    horovod.hierarchical.allreduce horovod.mpi.threads.disable horovod.process.num.per.worker horovod.stall.check.disable
    horovod.timeline host.blacklist host.local.enable input.strategy input.stream input.stream.shuffle inputfile.rename
    inputformat.cache inputformat.cachefile.name inputformat.cachesize.limit inputformat.class inputmat.cache interresult.dir
    interresult.save.inc interresult.upload.inc interresult.upload.interval interresult.upload.timeout job.exec.timeout
    job.labelname local.resource.visibility localresource.timeout log.pull.interval log.sampling memory.overhead.fraction
    memory.overhead.minimum messages.len.max mode.single mpi.container.update.status.retry mpi.exec.dir mpi.exec.dir.enable
    mpi.extra.ld.library.path mpi.extra.ld.lirbary.path mpi.install.dir mpi.install.dir.enable mxnet.mode.single
    nodemanager.webapp.port out.stream output.local.dir output.strategy outputformat.class placeholder.whole.enable ps.cores ps.gpus
    ps.mem.autoscale ps.memory ps.nodeLabelExpression ps.num python.home remote.defaultFS report.container.status reserve.port.begin
    reserve.port.end s3.bucket.dir.split s3.cluster s3.cluster.prefix s3.key.access s3.key.secret staging.dir status.update.interval
    stream.epoch task.timeout task.timeout.check.interval tf.board.enable tf.board.history.dir tf.board.log.dir tf.board.path
    tf.board.ps.enable tf.board.reload.interval tf.board.upload tf.board.worker.index tf.distribution.strategy tf.evaluator
    tf.input.ps.enable tf.mode.single upload.file.thread.nums upload.output.thread.nums user.classpath.first vpc.duration
    webapp.spnego-keytab-file webapp.spnego-principal worker.cores worker.gpus worker.mem.autoscale worker.memory
    worker.nodeLabelExpression worker.num
"""

FLAGS_OF_THEIRS, KEYS_OF_THEIRS = _FLAGS.split(), _KEYS.split()


def test_the_page_and_the_parser_have_every_flag() -> None:
    page = PAGE.read_text()
    known = {*OPTIONS, *SHORT, *OURS}
    assert sorted(name for name in FLAGS_OF_THEIRS if name not in known) == []
    long = {SHORT.get(name, name) for name in FLAGS_OF_THEIRS}
    assert sorted(name for name in long if not re.search(rf"`--{name}\b", page)) == []


@pytest.mark.parametrize("name", [name for name in FLAGS_OF_THEIRS if name in SHORT])
def test_a_short_name_is_the_flag(name: str) -> None:
    """XLearning's parser took `-appName` for `--app-name`."""
    flag = SHORT[name]
    assert flag in FLAGS or flag in REPEATED


def test_a_short_name_is_accepted_with_one_dash() -> None:
    found = xlearning.translated(
        ["-appName", "demo", "-workerNum", "3", "-launchCmd", "python a.py", "-boardLogDir", "logs"], "yarn", {}
    )
    assert isinstance(found, Translation)
    job = found.described.job
    assert (job.name, job.roles["worker"].replicas.max) == ("demo", 3)


@pytest.mark.parametrize("name", KEYS_OF_THEIRS)
def test_a_key_is_accepted_or_refused_with_its_reason(name: str) -> None:
    """A known key may refuse the value that this test gives it, but never as an unknown key."""
    value = "a=b" if name.endswith((".env", "extraEnv")) else "60000"
    assert f"has no xlearning.{name}" not in _refusal("--conf", f"xlearning.{name}={value}", "true")


def _refusal(*words: str) -> str:
    """Return the error about these words, "" where they are a job."""
    try:
        xlearning.translated(words, "yarn", {})
    except BadInput as error:
        return str(error)
    return ""


def test_the_page_has_every_key() -> None:
    """Keys about how XLearning itself works are on the page by the beginning of their names."""
    page = PAGE.read_text()
    named = {
        name for name in KEYS_OF_THEIRS if SAME.get(name, name) not in FLAGS.values() and not MACHINERY.fullmatch(name)
    }
    assert sorted(name for name in {SAME.get(name, name) for name in named} if f"`{name}" not in page) == []
    assert sorted(key for key in REFUSED if f"`{key}`" not in page and key not in FLAGS.values()) == []
