"""Our TFRecords and Examples beside TensorFlow's own."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.runtime import shards
from trainmaster.runtime.formats.crc32c import masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame, records
from trainmaster.spark import tfrecords

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

LISTS = {"bytes": "bytes_list", "float": "float_list", "int64": "int64_list"}
FEATURE = st.one_of(
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=300), max_size=4)),
    st.tuples(st.just("float"), st.lists(st.floats(width=32, allow_nan=False), max_size=40)),
    st.tuples(st.just("int64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)),
)
FEATURES = st.dictionaries(st.text(max_size=12), FEATURE, max_size=6)


def of_tensorflow(features: dict[str, tuple[str, list[Any]]]) -> Any:
    example = tf.train.Example()
    example.features.SetInParent()
    for name, (kind, values) in features.items():
        values_of_kind = getattr(example.features.feature[name], LISTS[kind])
        values_of_kind.SetInParent()
        values_of_kind.value.extend(values)
    return example


def encoded(features: dict[str, tuple[str, list[Any]]]) -> bytes:
    return tfrecords.encode([(name, *feature) for name, feature in sorted(features.items())])


@settings(deadline=None)
@given(FEATURES)
def test_an_example_is_tensorflow_s(features: dict[str, tuple[str, list[Any]]]) -> None:
    example = of_tensorflow(features)
    assert tf.train.Example.FromString(encoded(features)) == example
    assert len(encoded(features)) == example.ByteSize()  # protobuf promises no order of the names
    assert tfrecords.decode(example.SerializeToString()) == features


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_what_tensorflow_reads_of_any_bytes_is_read_too(content: bytes) -> None:
    example = tf.train.Example()
    try:
        example.ParseFromString(content)
    except Exception:  # noqa: BLE001 - whatever protobuf raises
        return
    assert tfrecords.decode(content).keys() == example.features.feature.keys()


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x12\x06\x0d\x00\x00\x80\x3f\x38",  # cut short
        b"\x0a\x07abc",
        b"\xff" * 12,
        b"\x0b",
        b"\x08\x01",
    ],
)
def test_bytes_that_are_no_example_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        tfrecords.decode(content)


def test_lists_that_are_not_packed_and_fields_of_later_versions_are_read() -> None:
    """Protobuf demands it of every reader; the second list of the oneof's same kind adds its values."""
    floats = b"\x12\x05\x0d\x00\x00\x80\x3f" + b"\x12\x06\x0a\x04\x00\x00\x00\x40"
    entry = b"\x0a\x01x\x12" + bytes((len(floats),)) + floats
    body = b"\x0a" + bytes((len(entry),)) + entry + b"\x78\x05"
    content = b"\x0a" + bytes((len(body),)) + body + b"\x7d\x01\x02\x03\x04"
    example = tf.train.Example.FromString(content)
    assert list(example.features.feature["x"].float_list.value) == [1.0, 2.0]
    assert tfrecords.decode(content) == {"x": ("float", [1.0, 2.0])}


@settings(deadline=None, max_examples=40)
@given(contents=st.lists(st.binary(max_size=3000), max_size=5))
def test_a_file_is_tensorflow_s(contents: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    checksum = masked_crc32c()
    ours, theirs = (tmp_path_factory.mktemp("records") / name for name in ("ours", "theirs"))
    ours.write_bytes(b"".join(frame(content, checksum) for content in contents))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for content in contents:
            writer.write(content)
    assert ours.read_bytes() == theirs.read_bytes()
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(ours))] == contents
    assert list(records(io.BytesIO(theirs.read_bytes()), "theirs", None, checksum)) == contents


@settings(deadline=None, max_examples=20)
@given(contents=st.lists(st.binary(max_size=3000), max_size=5), packed=st.sampled_from(["", "GZIP"]))
def test_a_shard_is_a_file_of_tensorflow_s(
    contents: list[bytes], packed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("records") / "theirs"
    with tf.io.TFRecordWriter(str(path), packed) as writer:
        for content in contents:
            writer.write(content)
    assert list(shards("x", default=str(path), format="tfrecord")) == contents


def test_floats_beyond_their_range_are_infinite_as_tensorflow_s(tmp_path: Path) -> None:
    features = {"x": ("float", [1e300, -1e300, 0.1])}
    assert encoded(features) == of_tensorflow(features).SerializeToString(deterministic=True)
