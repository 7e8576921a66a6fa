"""What is known of a cluster's nodes: which of them are gone."""

from __future__ import annotations

from typing import Any, cast

from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.kube.client import Object


def test_a_node_is_gone_from_when_it_was_taken_out_until_it_comes_back() -> None:
    nodes = Nodes(cast(Any, None), lambda node: None)
    node: Object = {
        "metadata": {"name": "a"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert not nodes.gone("a"), "one that nobody has told of yet may be new"
    nodes._take(node)
    nodes._known.pop("a")
    nodes._removed.add("a")
    assert nodes.gone("a")
    nodes._take(node)
    assert not nodes.gone("a")
    assert not nodes.away("a")
