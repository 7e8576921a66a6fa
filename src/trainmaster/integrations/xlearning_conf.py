"""The configuration of XLearning, as its users write it: flags, keys, site files and the spelling of values.

Every flag stands for a key, `--worker-memory 2G` for `xlearning.worker.memory`. So all settings become one table, where later ones win:
XLearning's defaults, the site file, `--conf`, the flags. Keys are written here without `xlearning.`; `hbox.` is the same. Facts:
XLearning 1.0 to 1.4 and Hbox 1.8 (ClientArguments, XLearningConfiguration).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.integrations.dialect import FLAG, VALUE, Option, count, unknown, wrong_value

WHAT = "XLearning"
DEFAULT = "XLearning's default"
# Flags, and the key of the configuration that each stands for.
FLAGS = {
    "app-name": "app.name", "app-type": "app.type", "am-memory": "am.memory", "am-cores": "am.cores", "driver-memory": "am.memory",
    "driver-cores": "am.cores", "worker-num": "worker.num", "worker-memory": "worker.memory", "worker-cores": "worker.cores",
    "worker-gpus": "worker.gpus", "ps-num": "ps.num", "ps-memory": "ps.memory", "ps-cores": "ps.cores", "ps-gpus": "ps.gpus",
    "chiefworker-memory": "chief.worker.memory", "evaluatorworker-memory": "evaluator.worker.memory", "tf-evaluator": "tf.evaluator",
    "input-strategy": "input.strategy", "output-strategy": "output.strategy", "inputformat": "inputformat.class",
    "outputformat": "outputformat.class", "inputformat-shuffle": "input.stream.shuffle", "inputformat-enable": "input.stream",
    "outputformat-enable": "out.stream", "stream-epoch": "stream.epoch", "isRenameInputFile": "inputfile.rename",
    "inRenameInputFile": "inputfile.rename", "output-index": "output.index", "create-containerid-dir": "createcontainerid.dir",
    "files": "files", "archiveFiles": "archiveFiles", "cacheFile": "cacheFile", "cacheArchive": "cacheArchive", "jars": "jars",
    "user-path": "user.path", "user-ldlibrarypath": "user.ldlibrarypath", "user-classpath-first": "user.classpath.first",
    "host-local-enable": "host.local.enable", "priority": "app.priority", "queue": "app.queue", "board-enable": "tf.board.enable",
    "board-index": "tf.board.worker.index", "board-logdir": "tf.board.log.dir", "board-reloadinterval": "tf.board.reload.interval",
    "board-historydir": "tf.board.history.dir", "board-modelpb": "board.modelpb", "board-cacheTimeout": "board.cache.timeout",
    "duration": "vpc.duration", "docker-image": "docker.image", "container-type": "container.type", "cluster": "cluster.name",
    "launch-cmd": "launch.cmd", "xlearning-cmd": "launch.cmd", "hbox-cmd": "launch.cmd",
}  # fmt: skip
REPEATED = ("input", "output", "s3input", "s3output", "conf")
OPTIONS = {**dict.fromkeys((*FLAGS, *REPEATED), VALUE), "version": FLAG}


def _short(name: str) -> str:
    """Return `app-name` as `appName`, which XLearning's parser took too, with one dash."""
    first, *rest = name.split("-")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


# Short names of flags, and the long one of each. Some are not made by the rule.
SHORT = {_short(name): name for name in FLAGS if "-" in name} | {
    "boardReloadInterval": "board-reloadinterval", "boardLogDir": "board-logdir", "boardHistoryDir": "board-historydir",
    "boardModelPB": "board-modelpb", "inputFormatClass": "inputformat", "outputFormatClass": "outputformat",
    "userLDLIBRARYPATH": "user-ldlibrarypath", "chiefWorkerMemory": "chiefworker-memory",
    "evaluatorWorkerMemory": "evaluatorworker-memory",
}  # fmt: skip
HADOOP_SETTING = "hadoop:"  # in front of a setting of Hadoop's own in the table
DEFAULTS = {
    "app.type": "standalone", "am.memory": "1024", "am.cores": "1", "worker.num": "1", "worker.memory": "1024", "worker.cores": "1",
    "worker.gpus": "0", "ps.num": "0", "ps.memory": "1024", "ps.cores": "1", "ps.gpus": "0", "app.priority": "3",
    "input.strategy": "DOWNLOAD", "output.strategy": "UPLOAD", "container.maxFailures.rate": "0.5",
    "container.auto.create.output.dir": "true",
    "tf.board.worker.index": "0", "tf.board.log.dir": "eventLog", "tf.board.reload.interval": "1", "tf.evaluator": "false",
    "tf.distribution.strategy": "false", "createcontainerid.dir": "true", "stream.epoch": "1", "input.stream.shuffle": "false",
    "inputformat.class": "org.apache.hadoop.mapred.TextInputFormat", "outputformat.class": "TextMultiOutputFormat",
    "output.index": "-1", "user.classpath.first": "true", "placeholder.whole.enable": "false", "tf.board.path": "tensorboard",
    "board.path": "visualDL", "board.cache.timeout": "20",
    "worker.mem.autoscale": "0.5", "ps.mem.autoscale": "0.2", "memory.overhead.fraction": "0.10", "memory.overhead.minimum": "384",
    "inputformat.cache": "false", "inputformat.cachesize.limit": "102400",
}  # fmt: skip
# Keys that describe a job and that have neither a flag nor a default.
OTHERS = {
    "app.max.attempts", "job.exec.timeout", "localresource.timeout", "task.timeout", "interresult.upload.interval",
    "am.nodeLabelExpression",
    "worker.nodeLabelExpression", "ps.nodeLabelExpression", "job.labelname", "host.blacklist", "docker.registry.host",
    "docker.registry.port", "container.env", "am.env",
}  # fmt: skip
# Other spellings, of other versions, and the keys that they mean.
SAME = {
    "driver.memory": "am.memory", "driver.cores": "am.cores", "inputmat.cache": "inputformat.cache",
    "worker.gpu": "worker.gpus", "ps.gpu": "ps.gpus", "docker.image.name": "docker.image", "inputformat-shuffle": "input.stream.shuffle",
    "container.extraEnv": "container.env", "am.nodeLabelException": "am.nodeLabelExpression",
}  # fmt: skip
# Keys of how XLearning itself works: heartbeats, polls, threads, history. Ours works otherwise, and a job means the same without them.
MACHINERY = re.compile(
    r"(allocate|status\.update|log\.pull)\.interval|task\.timeout\.check\.interval|messages\.len\.max|execute\.node\.limit|staging\.dir"
    r"|cleanup\.enable|download\.file\..*|upload\.(output|file)\.thread\.nums|file\.list\.level|container\.(heartbeat|update)\..*"
    r"|container\.extra\.java\.opts|container\.jvm\.memory\..*|container\.mem\.usage\.warn\.fraction"
    r"|container\.running\.log\.enable|report\.container\.status|env\.maxlength|history\..*|local\.resource\.visibility|reserve\.port\..*"
    r"|interresult\.(upload\.timeout|save\.inc|upload\.inc)|inputformat\.cachefile\.name|cachefile\.check\.enable|client\..*|log\.sampling"
    r"|chief\.worker\.minimum\..*|mpi\..*|horovod\..*|digits\..*|tf\.mode\.single|mxnet\.mode\.single|append\.defaultfs\.enable"
    r"|app\.id|mode\.single|docker\.num\.per\.worker|nodemanager\.webapp\.port|cached\.mpi\..*|webapp\.spnego-.*|python\.home"
    r"|tf\.board\.upload|am\.extra\..*|jvm\..*|cluster\.name\.history\..*|cluster\.delegation\..*"
)
# Key that is refused -> its default in XLearning, which says nothing.
HARMLESS = {
    "interresult.dir": "/interResult_", "output.local.dir": "output", "docker.worker.dir": "/work", "docker.work.dir": "/work",
}  # fmt: skip
REFUSED: dict[str, tuple[str, str]] = {
    "host.local.enable": ("the wish for the hosts of the previous run", "leave it out: tasks go where there is room"),
    "cluster.name": ("the choice of a cluster by name", "set HADOOP_CONF_DIR to the configuration of that cluster"),
    "docker.run.args": ("arguments of docker run", "engines.yarn.mounts and engines.yarn.network, by --set"),
    "docker.worker.dir": ("a directory of its own in the image", "leave it out: programs run in the container's working directory"),
    "docker.work.dir": ("a directory of its own in the image", "leave it out: programs run in the container's working directory"),
    "tf.board.ps.enable": ("TensorBoard beside a ps", "--board-index names a worker; or --board-logdir a place that all reach"),
    "tf.input.ps.enable": ("an input of the ps", "--set inputs.NAME.to='[worker, ps]'"),
    "output.local.dir": ("another name of the output's directory", "say it: --output URL#NAME"),
    "interresult.dir": ("another name of saves", "leave it out: they are interResult_<time>"),
    "remote.defaultFS": ("another default file system", "write whole URLs, or set fs.defaultFS in HADOOP_CONF_DIR"),
    **dict.fromkeys(
        ("s3.cluster", "s3.cluster.prefix", "s3.bucket.dir.split", "s3.key.access", "s3.key.secret"),
        ("an object store by its configuration", "export AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY: the job takes them"),
    ),
    **dict.fromkeys(
        ("commom.cache.archive.hdfs", "commom.cache.archive.hdfs.convert.enable"),
        ("an archive of all jobs", "name it in each job: --cacheArchive"),
    ),
    "custom.exit": ("a file that ends an MPI job", "let the program exit"),
    "failed.upload": ("the upload of what a failed task wrote", "--set saves.every=10m: what was saved before stays"),
    "am.cmd": ("a command of the master's", "run it as a role of its own in a job file"),
    "am.cmd.enable": ("a command of the master's", "run it as a role of its own in a job file"),
}  # fmt: skip
_MEMORY = re.compile(r"(\d{1,9})([GgMm]?)")
_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?")


def table_of(flags: Sequence[tuple[str, Option]], environ: Mapping[str, str] = os.environ) -> dict[str, Option]:
    """Return all settings by key, from the defaults, the site file, --conf and the flags."""
    table = {key: Option(text, DEFAULT, False) for key, text in DEFAULTS.items()}
    table |= site(environ)
    for name, setting in flags:
        if name == "conf":
            _note_conf_flag(setting, table)
    table |= {FLAGS[name]: setting for name, setting in flags if name in FLAGS}
    return table


def site(environ: Mapping[str, str] = os.environ) -> dict[str, Option]:
    """Return the settings of the first site file.

    It is xlearning-site.xml in XLEARNING_CONF_DIR or HADOOP_CONF_DIR, or hbox-site.xml in HBOX_CONF_DIR.
    """
    from trainmaster.hadoop.errors import ConfError
    from trainmaster.hadoop.sitefile import read

    places = [(f"{system}_CONF_DIR", "") for system in ("XLEARNING", "HBOX")]
    places += [("XLEARNING_HOME", "conf"), ("HBOX_HOME", "conf"), ("HADOOP_CONF_DIR", "")]
    names = ("xlearning-site.xml", "hbox-site.xml")
    paths = [
        Path(environ[variable], below, name) for variable, below in places if environ.get(variable) for name in names
    ]
    path = next((path for path in paths if path.is_file()), None)
    table: dict[str, Option] = {}
    try:
        for entry in read(path) if path is not None else ():
            if entry.name.startswith(("xlearning.", "hbox.")):
                _note(table, entry.name, Option(entry.value, f"{path} line {entry.place.rpartition(':')[2]}", False))
    except ConfError as error:
        raise BadInput(str(error), place=str(path), mend="mend the file", anchor="dialect") from error
    return table


def _note_conf_flag(setting: Option, table: dict[str, Option]) -> None:
    name, mark, text = setting.text.partition("=")
    if not mark:
        raise wrong_value(setting, "KEY=VALUE")
    if name.startswith(("xlearning.", "hbox.")):
        _note(table, name, Option(text, f"flag --conf {name}"))
    else:
        table[f"{HADOOP_SETTING}{name}"] = Option(text, f"flag --conf {name}")


def _note(table: dict[str, Option], name: str, setting: Option) -> None:
    """Put a key of the configuration into the table. An unknown key is refused."""
    key = name.partition(".")[2]
    key = SAME.get(key, key)
    known = {*DEFAULTS, *FLAGS.values(), *OTHERS, *REFUSED}
    if key not in known and not MACHINERY.fullmatch(key) and not key.startswith(("am.env.", "container.env.")):
        raise unknown(name, [f"xlearning.{candidate}" for candidate in sorted(known)], f"{WHAT} at {setting.origin}")
    table[key] = setting


def memory(setting: Option) -> str:
    """Return `10G`, `512m`, or `1024`, which is MB, as a size of ours."""
    match = _MEMORY.fullmatch(setting.text.strip())
    if match is None or not int(match[1]):
        raise wrong_value(setting, "memory: 10G, 512M, or a number of MB")
    return f"{int(match[1])}{'GiB' if match[2] in ('G', 'g') else 'MiB'}"


def duration(setting: Option) -> str:
    """Return `1d`, `0.5h`, or `30`, which is seconds, as a duration of ours; 0 is for ever."""
    text = setting.text.strip()
    if _DURATION.fullmatch(text) is None:
        raise wrong_value(setting, "a time: 30s, 5m, 1.5h, 1d, or 0 for ever")
    unit = "" if text[-1] in "smhd" else "s"
    return f"{text}{unit}" if float(text.rstrip("smhd")) else "none"


def milliseconds(setting: Option) -> str:
    """Return a number of milliseconds as a duration of ours; 0 is `none`."""
    return f"{count(setting)}ms" if count(setting) else "none"


def fraction(setting: Option, most: float = math.inf) -> float:
    try:
        number = float(setting.text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise wrong_value(setting, f"a number from 0 to {most:g}" if most < math.inf else "a number, 0 or more")
    return number
