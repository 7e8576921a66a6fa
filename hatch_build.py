"""Bring what git does not hold when a wheel or an sdist is built: the scripts of pages (tools/pages, by npm) and the classes for Hadoop's
formats (`make java`).

An sdist has both, or its build fails. A wheel that is built from an sdist has them too: `python -m build`, `uv build` and `make release` go
that way. A wheel that is built from a clone, as by `pip install .`, gets what this machine can make, because its user may have neither npm
nor Java and may need neither. `tm doctor` says if pages have no scripts.
"""

import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = "src/trainmaster/web/pages/static/vendor"
PARTS = {
    f"{SCRIPTS}/VERSIONS": "the scripts of pages: install Node.js, whose npm brings them",
    "src/trainmaster/data/java/formats.jar": "the classes for Hadoop's formats: make java, which needs a JDK and Maven",
}


class Parts(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":  # `make setup` brings what a clone needs
            return
        subprocess.run([sys.executable, "tools/pages", SCRIPTS], cwd=self.root, check=True)
        missing = [text for path, text in PARTS.items() if not Path(self.root, path).exists()]
        if missing and self.target_name == "sdist":
            sys.exit("\n  ".join(["error: an sdist must have all parts of the package; missing:", *missing]))
        for text in missing:
            self.app.display_warning(f"missing: {text}")
