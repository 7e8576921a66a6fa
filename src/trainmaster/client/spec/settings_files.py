"""The paths of the files with settings for all jobs, and the engine that they probably name.

`tm` forks what a job needs before it loads YAML and the job's model. So this module reads a file of settings as text: a wrong answer of
`likely_engine` costs time alone, as `settings.default_engine` reads the file again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SITE = "/etc/trainmaster/config.yaml"
PREFIX = "TRAINMASTER_SET_"
ENGINE = "engine"  # the key that names the default engine
_ENGINE = re.compile(rf"^{ENGINE}:[ \t]*[\"']?([\w.-]+)", re.MULTILINE)


def settings_files(environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the site's file and of the user's, which need not exist."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return [environ.get("TRAINMASTER_SITE") or SITE, os.path.join(home, "trainmaster", "config.yaml")]


def likely_engine(environ: Mapping[str, str] = os.environ) -> str:
    """Return the default engine as a variable or a line of the files says it, "" where none does."""
    if engine := environ.get(PREFIX + ENGINE.upper()):
        return engine
    for path in reversed(settings_files(environ)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        if line := _ENGINE.search(text):
            return line[1]
    return ""
