"""Objects of Kubernetes as YAML that every reader takes for the same objects.

PyYAML writes a string without quotes where PyYAML itself would read a string again. Other readers disagree: kubectl's takes `1e3` and
`0o14` for numbers, and YAML 1.1 has `y` and `n` as booleans. So a string that begins like a number, and a lone `y` or `n`, is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_AMBIGUOUS = re.compile(r"[-+.]?[0-9].*|[yn]", re.IGNORECASE | re.DOTALL)


def as_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as a stream of documents, as `kubectl apply -f -` reads it."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "'" if _AMBIGUOUS.fullmatch(text) and "\n" not in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent)
    dumps = (
        yaml.dump(dict(row), Dumper=Dumper, sort_keys=False, default_flow_style=False, width=120) for row in objects
    )
    return "---\n".join(dumps)
