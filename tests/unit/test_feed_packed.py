"""Rows as Spark's Kryo packs them, made here by its rules, become batches of Arrow; what Spark itself packs is in `test_spark_frames`."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from trainmaster.runtime.feed import packed

NUMBERS = {"id": pa.int64(), "flag": pa.bool_(), "day": pa.date32(), "half": pa.float32()}
ARRAYS = {"pixels": pa.list_(pa.float32()), "counts": pa.list_(pa.int64())}
SCHEMA = pa.schema({**NUMBERS, "text": pa.string(), **ARRAYS, "small": pa.int8()})
WORDS = {"id": "<q", "flag": "<?", "day": "<i", "half": "<f", "small": "<b"}


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def bits(flags: list[bool]) -> bytes:
    return sum(flag << index for index, flag in enumerate(flags)).to_bytes((len(flags) + 63) // 64 * 8, "little")


def pack(row: dict[str, Any], order: str) -> bytes:
    """Pack a row as Spark does, `order` being Kryo's order of bytes."""
    words, tail = b"", b""
    for name, value in row.items():
        if value is None:
            words += bytes(8)
        elif name in WORDS:
            words += padded(struct.pack(WORDS[name], value))
        else:
            code = "q" if name == "counts" else "f"
            array = value if name != "text" else []
            elements = b"".join(struct.pack(f"<{code}", element or 0) for element in array)
            is_null = [element is None for element in array]
            content = (
                value.encode()
                if name == "text"
                else padded(len(array).to_bytes(8, "little") + bits(is_null) + elements)
            )
            words += ((8 * (1 + len(row)) + len(tail)) << 32 | len(content)).to_bytes(8, "little")
            tail += padded(content)
    memory = bits([value is None for value in row.values()]) + words + tail
    return b"\xd1\x01\x01" + struct.pack(f"{order}ii", len(memory), len(row)) + memory


def rows(chance: random.Random, is_even: bool) -> list[dict[str, Any]]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    def numbers(*kinds: Any) -> list[Any]:
        return [chance.choice(kinds) for _ in range(70 if is_even else chance.randint(0, 70))]

    return [
        {
            "id": maybe(chance.getrandbits(60)), "flag": maybe(chance.random() < 0.5), "day": maybe(chance.randint(-9, 9)),
            "half": maybe(0.5), "text": "abcdefgh" if is_even else maybe("é" * chance.randint(0, 9)), "pixels": numbers(0.5, 1.5),
            "counts": numbers(3, 4) if is_even else maybe(numbers(None, 2**50)), "small": maybe(-3),
        }
        for _ in range(50)
    ]  # fmt: skip


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_packed_rows_are_the_same_in_arrow(order: str, is_even: bool) -> None:
    expected = rows(random.Random(3), is_even)
    batches = list(packed.batches((pack(row, order) for row in expected), SCHEMA, most=20))
    assert [batch.num_rows for batch in batches] == [20, 20, 10]
    for batch in batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(batches)
    assert table.set_column(2, "day", table["day"].cast("int32")).to_pylist() == expected


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="20 bytes are not a packed row of 8 fields"):
        packed.record_batch([bytes(20)], SCHEMA)
