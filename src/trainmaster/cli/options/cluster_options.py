"""`tm cluster up` has options for each kind of cluster: they have the names of its settings, and no defaults but those."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.options.cluster_given import Pair, Size, Time, name_option

_PROTECTIONS = click.Choice(["authentication", "integrity", "privacy"])
_SWITCH: dict[str, Any] = {"is_flag": True, "default": None}
OPTIONS = (
    name_option,
    click.option("--nodes", type=int, help="nodes that run containers  [default: 1; kubernetes: 2, and 0 with --simulated; spark: 2]"),
    click.option("--memory", type=Size(), help="a node's memory for containers  [default: 4GiB]"),
    click.option("--cores", type=int, help="a node's cores for containers; there may be fewer  [default: 8]"),
    click.option("--gpus", type=int, default=0, help="GPUs that each node counts; none need to be there"),
    click.option("--resource", "resources", type=Pair("NAME=COUNT", int), multiple=True, help="a resource that each node counts"),
    click.option("--simulated", type=int, help="kubernetes: nodes that only say that they run pods; they alone need no root"),
    click.option("--fast-expiry", **_SWITCH, help="kubernetes: a silent node is lost after seconds, not minutes"),
    click.option("--queue", "queues", type=Pair("NAME=PERCENT", float), multiple=True, help="hadoop: a queue and its share; all make 100"),
    click.option("--label", "labels", type=Pair("NODE=LABEL"), multiple=True, help="hadoop: the label of a node, by its number from 1"),
    click.option("--kerberos", is_flag=False, flag_value="authentication", type=_PROTECTIONS, help="hadoop: with its own Kerberos"),
    click.option("--ha", "high_availability", **_SWITCH, help="hadoop: two ResourceManagers, one of them in standby"),
    click.option("--node-expiry", type=Time(), help="hadoop, spark: silence after which a node is lost  [default: 30s]"),
    click.option("--master-expiry", type=Time(), help="hadoop: silence after which a master is lost  [default: 30s]"),
    click.option("--ticket-life", type=Time(), help="hadoop: of users' Kerberos tickets  [default: 1d]"),
    click.option("--token-renewal", type=Time(), help="hadoop: how long a delegation token lives unrenewed  [default: 1d]"),
    click.option("--token-life", type=Time(), help="hadoop: how long a delegation token lives at most  [default: 7d]"),
    click.option("--property", "properties", type=Pair("NAME=VALUE"), multiple=True, help="hadoop, spark: any property of theirs"),
)  # fmt: skip
GPUS = {"hadoop": "yarn.io/gpu", "kubernetes": "nvidia.com/gpu", "spark": "gpu"}


def options(function: Any) -> Any:
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def settings_of(kind: str, settings: Any, gpus: int, values: dict[str, Any]) -> Any:
    """Return the settings of a kind. A usage error names the first option that is not for it."""
    import attrs

    values = {name: value for name, value in values.items() if value not in (None, ())}
    known = {field.name for field in attrs.fields(settings)}
    for name in values:
        if name not in known:
            raise click.BadParameter(f"is not for {kind}", param_hint=_flag(name))
    values |= {name: dict(value) for name, value in values.items() if isinstance(value, tuple)}
    if gpus:
        values["resources"] = {**values.get("resources", {}), GPUS[kind]: gpus}
    if values.get("simulated"):
        values.setdefault("nodes", 0)
    try:
        if "labels" in values:
            values["labels"] = {int(node): label for node, label in values["labels"].items()}
    except ValueError:
        raise click.BadParameter("a node is given by its number, from 1: 1=gpu", param_hint="--label") from None
    return settings(**values)


def _flag(name: str) -> str:
    flags = {"queues": "--queue", "labels": "--label", "properties": "--property", "high_availability": "--ha"}
    return flags.get(name, f"--{name.replace('_', '-')}")
