"""Bring executors what reads files of storages past the JVM: the archive that agents are, and the driver's settings of HDFS.

Executors' own credentials are used: delegation tokens (HADOOP_TOKEN_FILE_LOCATION), tickets, and the variables that the tools of object
stores read. Keys and passwords in the driver's Hadoop configuration are not sent.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trainmaster.spark import feeding

_SETTINGS = re.compile(r"fs\.defaultFS|fs\.viewfs\..*|dfs\..*|hadoop\.(security|rpc)\..*|fs\.permissions\..*")
_SECRET = re.compile(r"(?i)password|secret|token\.|access\.?key|credential")
_shipping = threading.Lock()
_shipped: dict[str, str] = {}  # application -> the name of the archive at its executors


def storages(session: Any) -> feeding.Storages:
    """Return how executors open files of storages. Raises BadInput where a package is missing that they need."""
    context = session.sparkContext
    with _shipping:
        if (name := _shipped.get(context.applicationId)) is None:
            name = _shipped[context.applicationId] = _ship(context)
    return feeding.Storages(name, _hadoop_settings(session))


def _ship(context: Any) -> str:
    from trainmaster.client.jobs.places import state_dir
    from trainmaster.engines.runtime_archive import archive

    path = archive(state_dir() / "runtime")
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-stores-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = f"trainmaster-stores-{path.name.partition('.')[0]}"
    copy = folder / f"{name}.tar.gz"  # Spark knows a file by its name alone, and a job may have brought the archive too
    shutil.copyfile(path, copy)
    context.addArchive(f"{copy}#{name}")
    return name


def _hadoop_settings(session: Any) -> dict[str, str]:
    """Return those settings of Hadoop in the driver's configuration that a client of HDFS reads."""
    writer = session.sparkContext._jvm.java.io.StringWriter()
    session._jsparkSession.sessionState().newHadoopConf().writeXml(writer)
    settings = {}
    for entry in ElementTree.fromstring(writer.toString()).iter("property"):
        name, value = entry.findtext("name", ""), entry.findtext("value")
        if value is not None and _SETTINGS.fullmatch(name) and not _SECRET.search(name):
            settings[name] = value
    return settings
