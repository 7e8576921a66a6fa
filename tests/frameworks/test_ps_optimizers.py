"""Optimizers: equal to Keras' and PyTorch's own, on whole parameters and on rows."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.ps.optimizers import (
    FTRL,
    SGD,
    TORCH,
    Adagrad,
    Adam,
    adamw,
    clip_by_global_norm,
    global_norm,
    stale_learning_rate,
    update_dense,
    update_rows,
)
from trainmaster.ps.tables.arena import Arena, Places

PROGRAM = Path(__file__).parents[1] / "programs" / "keras_updates.py"
CLOSE = 1e-5


def slots_of(optimizer: Any, shape: Sequence[int]) -> list[Any]:
    return [numpy.full(shape, initial, numpy.float32) for initial in optimizer.slots.values()]


def arena_of(array: Any) -> Arena:
    """Return the rows of an array, in blocks of seven."""
    arena = Arena(array.shape[1], block_rows=7)
    arena.reserve(len(array))
    arena.write(Places(numpy.arange(len(array)), 7, is_sorted=True), array)
    return arena


def array_of(arena: Arena, rows: int) -> Any:
    return arena.read(Places(numpy.arange(rows), 7, is_sorted=True))


def course(optimizer: Any, values: Any, gradients: Sequence[Any], rates: Sequence[float]) -> list[Any]:
    """Return the values after each dense update."""
    values, after = values.copy(), []
    slots = slots_of(optimizer, values.shape)
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        update_dense(optimizer, values, gradient, slots, step, rate)
        after.append(values.copy())
    return after


def assert_close(ours: Any, theirs: Any) -> None:
    """Compare to 1e-5 of each number, or of the largest where a number is the small difference of larger ones."""
    theirs = numpy.asarray(theirs, numpy.float32)
    numpy.testing.assert_allclose(
        ours, theirs, rtol=CLOSE, atol=CLOSE * max(1e-3, float(numpy.abs(theirs).max(initial=0)))
    )


# -- Keras --

KERAS_CASES: dict[str, tuple[str, list[tuple[dict[str, Any], Any]]]] = {
    "sgd": ("SGD", [({}, SGD())]),
    "momentum": (
        "SGD",
        [
            ({"momentum": 0.9}, SGD(momentum=0.9)),
            ({"momentum": 0.5, "nesterov": True}, SGD(momentum=0.5, nesterov=True)),
        ],
    ),
    "adam": (
        "Adam",
        [
            ({}, Adam()),
            ({"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3}, Adam(beta_1=0.5, beta_2=0.9, epsilon=1e-3)),
        ],
    ),
    "adamw": ("AdamW", [({}, adamw()), ({"weight_decay": 0.3}, adamw(weight_decay=0.3))]),
    "adagrad": (
        "Adagrad",
        [({}, Adagrad()), ({"initial_accumulator_value": 1.0, "epsilon": 0.01}, Adagrad(initial_accumulator=1.0, epsilon=0.01))],
    ),
    "ftrl": (
        "Ftrl",
        [
            ({}, FTRL()),
            ({"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2, "beta": 0.1}, FTRL(l1=0.1, l2=0.2, beta=0.1)),
            (
                {"l2_shrinkage_regularization_strength": 0.05, "learning_rate_power": -0.7},
                FTRL(l2_shrinkage=0.05, learning_rate_power=-0.7),
            ),
        ],
    ),
}  # fmt: skip


def random_course(choice: random.Random) -> tuple[Any, list[Any], list[float]]:
    """Return values, gradients and learning rates of a few steps, of a random shape."""
    generator = numpy.random.default_rng(choice.randrange(2**32))
    shape = [choice.randint(1, 7) for _ in range(choice.randint(1, 3))]
    values = generator.normal(0, 1, shape).astype(numpy.float32)
    scale = 10 ** choice.uniform(-2, 1)
    gradients = [
        (generator.normal(0, scale, shape) * generator.integers(0, 2, shape)).astype(numpy.float32) for _ in range(6)
    ]
    return values, gradients, [10 ** choice.uniform(-3, -0.5) for _ in gradients]


class KerasCourses:
    """Courses of Keras' own optimizers, all computed by one process."""

    def __init__(self, folder: Path) -> None:
        choice = random.Random(18)
        self.courses = {
            name: [(options, ours, *random_course(choice)) for options, ours in pairs for _ in range(8)]
            for name, (_, pairs) in KERAS_CASES.items()
        }
        self.clipped = [(limit, random_course(choice)[1]) for limit in (0.1, 1.0, 1e6)]
        cases = [
            [KERAS_CASES[name][0], options, values.tolist(), [gradient.tolist() for gradient in gradients], rates]
            for name, courses in self.courses.items()
            for options, _, values, gradients, rates in courses
        ]
        cases += [
            ["clip", {"limit": limit}, [], [part.tolist() for part in parts], []] for limit, parts in self.clipped
        ]
        (folder / "cases.json").write_text(json.dumps(cases))
        environ = {**os.environ, "KERAS_BACKEND": "torch", "KERAS_HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, PROGRAM, folder / "cases.json", folder / "results.json"]
        self._process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        self._folder = folder

    @functools.cached_property
    def results(self) -> dict[str, list[Any]]:
        """The values after each step, of each course; those of "clip" are the clipped gradients."""
        _, errors = self._process.communicate(timeout=300)
        assert self._process.returncode == 0, errors
        results = iter(json.loads((self._folder / "results.json").read_text()))
        return {name: [next(results) for _ in courses] for name, courses in self.courses.items()} | {"clip": [*results]}

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module", autouse=True)
def keras_courses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerasCourses]:
    """Start the process before the first test: importing Keras takes as long as the tests with PyTorch."""
    courses = KerasCourses(tmp_path_factory.mktemp("keras"))
    try:
        yield courses
    finally:
        courses.close()


# -- PyTorch --

SEEDS = st.randoms(use_true_random=False)
MOMENTA = st.sampled_from([0.0, 0.5, 0.9])
SHARES = st.sampled_from([0.5, 0.9, 0.999])
EPSILONS = st.sampled_from([1e-10, 1e-8, 1e-3])


def torch_course(kind: Any, values: Any, gradients: Sequence[Any], rates: Sequence[float], **options: Any) -> list[Any]:
    parameter = torch.nn.Parameter(torch.tensor(values))
    optimizer = kind([parameter], lr=rates[0], **options)
    after = []
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        after.append(parameter.detach().numpy().copy())
    return after


def assert_equal_courses(choice: random.Random, optimizer: Any, kind: Any, **options: Any) -> None:
    values, gradients, rates = random_course(choice)
    theirs = torch_course(kind, values, gradients, rates, **options)
    for mine, other in zip(course(optimizer, values, gradients, rates), theirs, strict=True):
        assert_close(mine, other)


@settings(max_examples=40, deadline=None)  # the first step of all loads much of PyTorch
@given(SEEDS, MOMENTA, st.booleans())
def test_sgd_is_that_of_torch(choice: random.Random, momentum: float, nesterov: bool) -> None:
    nesterov = nesterov and momentum > 0
    ours = SGD(momentum=momentum, nesterov=nesterov, convention=TORCH)
    assert_equal_courses(choice, ours, torch.optim.SGD, momentum=momentum, nesterov=nesterov)


@settings(max_examples=40, deadline=None)  # the first step of all loads much of PyTorch
@given(SEEDS, SHARES, SHARES, EPSILONS, st.sampled_from([0.0, 0.01, 0.3]))
def test_adam_is_that_of_torch(
    choice: random.Random, beta_1: float, beta_2: float, epsilon: float, decay: float
) -> None:
    ours = Adam(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, weight_decay=decay, convention=TORCH)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    assert_equal_courses(choice, ours, kind, betas=(beta_1, beta_2), eps=epsilon, weight_decay=decay)


@settings(max_examples=40, deadline=None)  # the first step of all loads much of PyTorch
@given(SEEDS, st.sampled_from([0.0, 0.1, 1.0]), EPSILONS)
def test_adagrad_is_that_of_torch(choice: random.Random, initial: float, epsilon: float) -> None:
    ours = Adagrad(initial_accumulator=initial, epsilon=epsilon, convention=TORCH)
    assert_equal_courses(choice, ours, torch.optim.Adagrad, initial_accumulator_value=initial, eps=epsilon)


@settings(max_examples=40, deadline=None)  # the first step of all loads much of PyTorch
@given(SEEDS, SHARES)
def test_adam_of_rows_is_the_sparse_adam_of_torch(choice: random.Random, beta_2: float) -> None:
    generator = numpy.random.default_rng(choice.randrange(2**32))
    values = generator.normal(0, 1, (20, 3)).astype(numpy.float32)
    parameter = torch.nn.Parameter(torch.tensor(values))
    theirs = torch.optim.SparseAdam([parameter], lr=0.05, betas=(0.9, beta_2), eps=1e-8)
    ours = Adam(0.05, 0.9, beta_2, 1e-8)  # which adds epsilon as Keras does
    arenas = [arena_of(array) for array in (values, *slots_of(ours, values.shape))]
    for step in range(1, 6):
        rows = numpy.sort(generator.choice(20, generator.integers(0, 12), replace=False))
        gradients = generator.normal(0, 1, (len(rows), 3)).astype(numpy.float32)
        parameter.grad = torch.sparse_coo_tensor(
            torch.tensor(rows)[None], torch.tensor(gradients), (20, 3), check_invariants=True
        )
        theirs.step()
        update_rows(ours, arenas, rows, gradients, step)
        assert_close(array_of(arenas[0], 20), parameter.detach().numpy())


# -- rows --

ALL = [SGD(), SGD(momentum=0.9, nesterov=True), Adam(), adamw(weight_decay=0.1), Adagrad(), FTRL(l1=0.01)]


@pytest.mark.parametrize("optimizer", ALL, ids=str)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40), dimension=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_rows_are_updated_as_a_dense_parameter_of_these_rows_alone(
    optimizer: Any, seed: int, rows: int, dimension: int
) -> None:
    generator = numpy.random.default_rng(seed)
    table = generator.normal(0, 1, (40, dimension)).astype(numpy.float32)
    touched = numpy.sort(generator.choice(40, rows, replace=False))
    before = [table, *slots_of(optimizer, table.shape)]
    arenas = [arena_of(array) for array in before]
    dense, *dense_slots = (array[touched] for array in before)
    for step in (1, 2, 3):
        gradients = generator.normal(0, 1, dense.shape).astype(numpy.float32)
        update_rows(optimizer, arenas, touched, gradients, step)
        update_dense(optimizer, dense, gradients, dense_slots, step)
    untouched = numpy.setdiff1d(numpy.arange(40), touched)
    for arena, expected, former in zip(arenas, (dense, *dense_slots), before, strict=True):
        array = array_of(arena, 40)
        assert (array[touched] == expected).all()
        assert (array[untouched] == former[untouched]).all()


@pytest.mark.parametrize("optimizer", ALL, ids=str)
def test_an_update_in_pieces_is_the_same(optimizer: Any) -> None:
    generator = numpy.random.default_rng(3)
    values = generator.normal(0, 1, (5000, 17)).astype(numpy.float32)
    gradients = generator.normal(0, 1, values.shape).astype(numpy.float32)
    arenas = [arena_of(array) for array in (values, *slots_of(optimizer, values.shape))]
    update_rows(optimizer, arenas, numpy.arange(5000), gradients, 1)
    whole, whole_slots = values.copy(), slots_of(optimizer, values.shape)
    optimizer.apply(whole, gradients, whole_slots, 1, optimizer.learning_rate)
    update_dense(optimizer, values, gradients, slots_of(optimizer, values.shape), 1)
    assert (values == whole).all()
    for arena, expected in zip(arenas, (whole, *whole_slots), strict=True):
        assert (array_of(arena, 5000) == expected).all()


@pytest.mark.parametrize("optimizer", [Adagrad(initial_accumulator=0.0, epsilon=0.0), FTRL(initial_accumulator=0.0)])
def test_a_first_gradient_of_zero_makes_no_nan(optimizer: Any) -> None:
    values = numpy.zeros((2, 2), numpy.float32)
    update_dense(optimizer, values, numpy.zeros_like(values), slots_of(optimizer, values.shape), 1)
    assert (values == 0).all()


# -- learning rates and bad input --


def test_a_stale_gradient_gets_a_smaller_learning_rate() -> None:
    assert [stale_learning_rate(0.6, staleness) for staleness in (0, 1, 2, 3)] == [0.6, 0.6, 0.3, pytest.approx(0.2)]


def test_a_norm_is_that_of_all_gradients_together() -> None:
    parts = [numpy.array([3.0], numpy.float32), numpy.array([[4.0, 0.0]], numpy.float32)]
    assert global_norm(parts) == 5.0
    assert global_norm([numpy.full(4, 3e38, numpy.float32)]) == pytest.approx(6e38)
    clipped = clip_by_global_norm(parts, 2.5)
    assert [part.tolist() for part in clipped] == [[1.5], [[2.0, 0.0]]]
    assert parts[0].tolist() == [3.0]
    with pytest.raises(FloatingPointError, match="global norm of the gradients is nan"):
        clip_by_global_norm([numpy.array([numpy.nan], numpy.float32)], 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(-1.0), "learning_rate of SGD must not be negative, and is -1.0"),
        (lambda: SGD(momentum=2.0), "momentum of SGD must be from 0 to 1, and is 2.0"),
        (lambda: Adam(beta_1=1.0), "beta_1 of Adam must be at least 0 and below 1, and is 1.0"),
        (lambda: Adam(convention="jax"), "convention of Adam must be 'keras' or 'torch', and is 'jax'"),
        (lambda: Adagrad(epsilon=-1.0), "epsilon of Adagrad must not be negative, and is -1.0"),
        (lambda: FTRL(learning_rate_power=0.5), "learning_rate_power of FTRL must not be above 0, and is 0.5"),
        (lambda: FTRL(learning_rate=0.0), "learning_rate of FTRL must be above 0, and is 0.0"),
        (lambda: Adam(float("nan")), "learning_rate of Adam must not be negative, and is nan"),
    ],
)
def test_impossible_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


def test_arrays_of_different_shapes_are_refused() -> None:
    values = numpy.zeros((2, 3), numpy.float32)
    with pytest.raises(ValueError, match="need one shape"):
        update_dense(SGD(), values, values.T, [], 1)
    with pytest.raises(ValueError, match="in C's order"):
        update_dense(SGD(), values.T, values.T, [], 1)


# -- Keras' results --


@pytest.mark.parametrize("name", KERAS_CASES)
def test_a_dense_update_is_that_of_keras(keras_courses: KerasCourses, name: str) -> None:
    for (_, ours, values, gradients, rates), results in zip(
        keras_courses.courses[name], keras_courses.results[name], strict=True
    ):
        for mine, theirs in zip(course(ours, values, gradients, rates), results, strict=True):
            assert_close(mine, theirs)


def test_clipping_by_the_global_norm_is_that_of_keras(keras_courses: KerasCourses) -> None:
    for (limit, gradients), results in zip(keras_courses.clipped, keras_courses.results["clip"], strict=True):
        for mine, theirs in zip(clip_by_global_norm(gradients, limit), results, strict=True):
            assert_close(mine, theirs)
