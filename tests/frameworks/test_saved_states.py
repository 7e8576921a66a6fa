"""States of NumPy, PyTorch and Keras that a program saves by the runtime come back as they were; a group takes one together."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from savers import end_all

from trainmaster.runtime import checkpoint
from trainmaster.runtime.states import memory_slots, saver, state_format

SOURCE = Path(state_format.__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(saver, "_savers", {})
    yield
    end_all()


def next_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has saved, as a new program would not know it."""
    end_all()
    monkeypatch.setattr(saver, "_savers", {})


def save_stored(step: int, state: dict[str, Any], folder: Path, **how: Any) -> None:
    checkpoint.save(step, state, at=str(folder), **how)
    checkpoint.wait()


def test_plain_values_and_arrays_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {
        "none": None, "flags": [True, False], "numbers": (1, -(10**30), 2.5, math.inf), "text": "é\n", "bytes": b"\0\xff", "empty": b"",
        "complex": 1 - 2j, "sets": [{1, 2}, frozenset("ab")], "nested": {1: {"a": [()]}, None: {}, (1, "x"): 3},
        "array": np.arange(12, dtype=np.int16).reshape(3, 4), "strided": np.arange(10)[::3], "scalar": np.float32(1.5),
        "no dimension": np.array(7), "nothing": np.zeros((0, 3)), "big": np.arange(3, dtype=">f8"), "texts": np.array(["a", "bcd"]),
        "times": np.array(["2026-01-01"], dtype="M8[s]"), "large": np.random.default_rng(1).random(500_000),
    }  # fmt: skip
    save_stored(5, state, tmp_path / "ckpt")
    for source in ("memory", "stored"):
        loaded = checkpoint.load(at=str(tmp_path / "ckpt"), memory=source == "memory")
        assert loaded is not None
        if source == "stored":
            assert loaded.source == "stored"
        assert loaded.step == 5
        assert list(loaded) == list(state)
        for name, value in state.items():
            if isinstance(value, np.ndarray):
                assert loaded[name].dtype == value.dtype
                assert loaded[name].shape == value.shape
                assert np.array_equal(loaded[name], value), name
            else:
                assert loaded[name] == value
                assert type(loaded[name]) is type(value)
        next_program(monkeypatch)


def test_a_header_that_does_not_fit_its_buffers_is_refused() -> None:
    header, _ = state_format.pack(1, {"a": np.zeros(4)})
    with pytest.raises(ValueError, match="has not the 31 bytes that were stored"):
        state_format.unpack({**header, "buffers": [[0, 31]]}, lambda index, view: None)
    with pytest.raises(ValueError, match="newest known here"):
        state_format.unpack({**header, "v": "2.0"}, lambda index, view: None)
    tree = {"dict": [["a", {"numpy": 0, "dtype": "O", "shape": [4]}]]}
    with pytest.raises(ValueError, match="plain bytes"):
        state_format.unpack({**header, "tree": tree}, lambda index, view: None)


@pytest.mark.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def test_state_of_pytorch_comes_back(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = ["float64", "float16", "bfloat16", "int8", "uint8", "bool", "complex64", "float8_e4m3fn", "int64"]
    tensors = {
        name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in types if hasattr(torch, name)
    } | {
        "strided": torch.arange(12).reshape(3, 4).t(),
        "scalar": torch.tensor(3.0),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "nothing": torch.zeros(0, 3),
    }
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}

    def made() -> tuple[Any, Any]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(device)
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = made()
    model(torch.randn(8, 4, device=device)).sum().backward()
    optimizer.step()
    random = torch.get_rng_state()
    save_stored(9, {"model": model, "optimizer": optimizer, "tensors": tensors, "random": random}, tmp_path)
    next_program(monkeypatch)
    model2, optimizer2 = made()
    loaded = checkpoint.load(into={"model": model2, "optimizer": optimizer2}, at=str(tmp_path))
    assert loaded is not None
    assert (loaded.step, loaded.source) == (9, "stored")
    assert loaded["model"]._metadata == model.state_dict()._metadata
    for name, value in model.state_dict().items():
        assert torch.equal(model2.state_dict()[name], value)
    assert optimizer2.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    for key, parts in optimizer.state_dict()["state"].items():
        assert all(torch.equal(optimizer2.state_dict()["state"][key][name], part) for name, part in parts.items())
    for name, tensor in tensors.items():
        assert loaded["tensors"][name].dtype == tensor.dtype
        assert torch.equal(loaded["tensors"][name].to(torch.complex64), tensor.cpu().to(torch.complex64)), name
    assert torch.equal(loaded["random"], random)
    for step in range(10, 16):  # each slot is made larger
        save_stored(step, {"large": torch.arange(step << 16, device=device)}, tmp_path)
        kept = checkpoint.load(at=str(tmp_path), memory=True)
        assert kept is not None
        assert (kept.source, kept.step) == ("memory", step)
        assert torch.equal(kept["large"], torch.arange(step << 16))
    with pytest.raises(TypeError, match="sparse"):
        checkpoint.save(20, {"x": torch.eye(2).to_sparse()}, at=str(tmp_path))


@pytest.mark.full
def test_state_of_keras_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    def made() -> tuple[Any, Any]:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, "mse")
        return model, optimizer

    model, optimizer = made()
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    save_stored(3, {"model": model, "optimizer": optimizer, "one": model.weights[0]}, tmp_path)
    next_program(monkeypatch)
    model2, optimizer2 = made()
    loaded = checkpoint.load(into={"model": model2, "optimizer": optimizer2}, at=str(tmp_path))
    assert loaded is not None
    assert all(np.array_equal(a, b) for a, b in zip(model2.get_weights(), model.get_weights(), strict=True))
    assert np.array_equal(loaded["one"], model.get_weights()[0])
    variables = zip(optimizer2.variables, optimizer.variables, strict=True)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in variables)
    with pytest.raises(ValueError, match="build"):
        checkpoint.load(into={"optimizer": keras.optimizers.Adam()}, at=str(tmp_path))


@pytest.mark.full
def test_a_group_takes_a_state_from_memory_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [os.memfd_create("test") for _ in range(memory_slots.COUNT)]
    monkeypatch.setenv(memory_slots.VARIABLE, ":".join(f"/proc/{os.getpid()}/fd/{number}" for number in held))
    save_stored(1, {"x": np.full(3, 1)}, tmp_path, every=1000)
    checkpoint.save(2, {"x": np.full(3, 2)}, at=str(tmp_path), every=1000)
    code = f"""
        import os, torch, torch.distributed as group
        from trainmaster.runtime import checkpoint
        alone = checkpoint.load(at={str(tmp_path)!r})
        group.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=int(os.environ["RANK"]), world_size=2)
        together = checkpoint.load(at={str(tmp_path)!r})
        stored = checkpoint.load(at={str(tmp_path)!r}, memory=False)
        nothing = checkpoint.load(at={str(tmp_path / "none")!r})
        print(alone.step, together.step, together.source, together["x"].tolist(), stored.step, nothing)
        group.destroy_process_group()
        os._exit(0)  # without storing
    """
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    programs = []
    for rank in "01":
        more = {"RANK": rank} | ({memory_slots.VARIABLE: ""} if rank == "1" else {})
        programs.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(code)],
                env={**environ, **more},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    assert [process.communicate()[0] for process in programs] == ["1 2 memory [2, 2, 2] 1 None\n"] * 2
    checkpoint.wait()
    for number in held:
        os.close(number)
