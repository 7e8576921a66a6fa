"""TFRecord files: the checksum, and files that are damaged. tests/frameworks has the comparison with TensorFlow."""

from __future__ import annotations

import io

import pytest

from trainmaster.runtime.formats.crc32c import crc32c_function, crc32c_in_python, masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame, records

RECORDS = [b"", b"a", b"record", bytes(range(256)) * 5]


@pytest.mark.parametrize(
    ("content", "crc"),  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"123456789", 0xE3069283)],
)
def test_the_checksum_is_crc32c(content: bytes, crc: int) -> None:
    assert crc32c_in_python()(content) == crc
    assert crc32c_function()(content) == crc


def test_every_damaged_byte_and_every_cut_is_noticed() -> None:
    checksum = masked_crc32c()
    content = b"".join(frame(record, checksum) for record in RECORDS[:3])
    assert list(records(io.BytesIO(content), "part-00000", len(content), checksum)) == RECORDS[:3]
    borders = {0, 16, 33}
    for place in range(len(content)):
        damaged = content[:place] + bytes((content[place] ^ 0x10,)) + content[place + 1 :]
        with pytest.raises(ValueError, match="part-00000 is "):
            list(records(io.BytesIO(damaged), "part-00000", len(damaged), checksum))
        if place not in borders:
            with pytest.raises(ValueError, match="cut short"):
                list(records(io.BytesIO(content[:place]), "part-00000", place, checksum))
