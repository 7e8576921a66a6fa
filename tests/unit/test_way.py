"""The way that a job's collectives take: interface, transport, RDMA device."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from
from trainmaster.frameworks.variables import NETWORK
from trainmaster.host.network import rdma
from trainmaster.host.network.way import Way, find_way


def host_with(
    root: Path, device: str, interface: str, *, number: int = 1, state: str = "4: ACTIVE", node: bool = True
) -> None:
    """Lay out the files by which Linux shows an RDMA device (Documentation/ABI/stable/sysfs-class-infiniband)."""
    port = root / "sys/class/infiniband" / device / "ports" / str(number)
    (port / "gid_attrs/ndevs").mkdir(parents=True)
    (port / "gid_attrs/ndevs/0").write_text(f"{interface}\n")
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text("Ethernet\n")
    verbs = root / "sys/class/infiniband_verbs" / f"uverbs_{device}"
    verbs.mkdir(parents=True, exist_ok=True)
    (verbs / "ibdev").write_text(f"{device}\n")
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    if node:
        (root / "dev/infiniband" / verbs.name).touch()


def test_a_network_is_an_interface_or_both_keys() -> None:
    roles = {"worker": {"command": "x"}}
    short, whole = (job_from({"roles": roles, "network": network}).network for network in ("ib0", {"interface": "ib0"}))
    assert short == whole
    assert (short.interface, short.transport) == ("ib0", "auto")
    with pytest.raises(BadInput, match="expected auto, tcp or rdma; did you mean rdma"):
        job_from({"roles": roles, "network": {"transport": "rmda"}})


def test_without_a_network_libraries_find_the_interface_of_the_tasks_address() -> None:
    address, way = find_way("127.0.0.1", "", "auto")
    assert (address, way.interface, way.chosen()) == ("127.0.0.1", "lo", {})
    assert way.variables() == {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    assert Way().variables() == {}


def test_sockets_that_are_asked_for_are_all_that_there_is() -> None:
    _, way = find_way("127.0.0.1", "127.0.0.0/8", "tcp")
    assert way.variables() == {
        "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_NET": "Socket", "UCX_NET_DEVICES": "lo",
    }  # fmt: skip
    assert way.chosen() == {"interface": "lo", "transport": "tcp"}


def test_rdma_takes_the_active_port_of_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "locked_limit", lambda: rdma.UNLIMITED)
    host_with(tmp_path, "mlx5_0", "ib7")
    host_with(tmp_path, "mlx5_1", "lo", state="1: DOWN")
    host_with(tmp_path, "mlx5_1", "lo", number=2)
    _, way = find_way("127.0.0.1", "lo", "rdma", str(tmp_path))
    assert way.device == "mlx5_1:2"
    variables = way.variables()
    assert (variables["NCCL_NET"], variables["NCCL_IB_HCA"], variables["UCX_NET_DEVICES"]) == (
        "IB",
        "=mlx5_1:2",
        "mlx5_1:2",
    )
    assert set(variables) == {row.name for row in NETWORK}
    assert way.chosen() == {"interface": "lo", "transport": "rdma", "device": "mlx5_1:2"}


def test_rdma_that_cannot_be_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=f"{socket.gethostname()} has no RDMA device on lo"):
        find_way("127.0.0.1", "lo", "rdma", str(tmp_path))
    host_with(tmp_path, "mlx5_0", "lo", state="1: DOWN")
    host_with(tmp_path, "mlx5_1", "lo", node=False)
    with pytest.raises(
        BadInput, match=r"mlx5_0:1 is not active; mlx5_1:1 cannot be opened: there is no .*uverbs_mlx5_1"
    ):
        find_way("127.0.0.1", "lo", "rdma", str(tmp_path))
    host_with(tmp_path, "mlx5_2", "lo")
    monkeypatch.setattr(rdma, "locked_limit", lambda: 64 * 1024)
    with pytest.raises(BadInput, match="programs may lock 64 KiB of memory, too little for RDMA"):
        find_way("127.0.0.1", "lo", "rdma", str(tmp_path))
