"""Fingerprints of whole numbers: Fingerprint64 of FarmHash, of a number's decimal digits as text.

TensorFlow's `tf.strings.to_hash_bucket_fast(tf.as_string(numbers), bins)` is such a fingerprint modulo `bins`, and so are the bins of
ElasticDL's layers. With this module, Keras has the same bins on a backend without strings. A fingerprint is the same on each machine and in
each run: nothing is seeded.

The algorithm is that of https://github.com/google/farmhash (`farmhashna::Hash64`), for the lengths that whole numbers of 64 bits have:
1 to 20 bytes. All arithmetic is modulo 2^64, as NumPy's is for arrays of uint64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

Words = Any  # an array of uint64, one for each text
Texts = Any  # an array of uint8, a row for each text: all of one length

DIGITS = 20  # of the longest numbers, with their sign: -9223372036854775808 and 18446744073709551615

_K0 = numpy.uint64(0xC3A5C85C97CB3127)
_K1 = numpy.uint64(0xB492B66FBE98F273)
_K2 = numpy.uint64(0x9AE16A3B2F90404F)
_ALL = (1 << 64) - 1


def bins(numbers: Any, count: int) -> Any:
    """Return the bin from 0 to `count` - 1 of each number as int64, in the shape of `numbers`, an array of whole numbers."""
    return (fingerprints(numbers) % numpy.uint64(count)).astype(numpy.int64)


def fingerprints(numbers: Any) -> Words:
    """Return the fingerprint of each whole number's decimal digits as uint64, in the shape of `numbers`."""
    array = numpy.asarray(numbers)
    characters = numpy.ascontiguousarray(array.reshape(-1).astype(f"S{DIGITS}")).view(numpy.uint8).reshape(-1, DIGITS)
    lengths = (characters != 0).sum(axis=1)
    words = numpy.zeros(len(characters), numpy.uint64)
    for length in range(1, DIGITS + 1):
        rows = numpy.flatnonzero(lengths == length)
        if len(rows):
            words[rows] = _hash(length)(characters[rows, :length])
    return words.reshape(array.shape)


def _hash(length: int) -> Callable[[Texts], Words]:
    if length < 4:
        return _hash_to_3
    if length < 8:
        return _hash_4_to_7
    return _hash_8_to_16 if length <= 16 else _hash_17_to_32


def _hash_to_3(texts: Texts) -> Words:
    length = texts.shape[1]
    first, middle, last = (_word(texts[:, at]) for at in (0, length >> 1, length - 1))
    low = first + (middle << numpy.uint64(8))
    high = numpy.uint64(length) + (last << numpy.uint64(2))
    return _shift_mix(low * _K2 ^ high * _K0) * _K2


def _hash_4_to_7(texts: Texts) -> Words:
    length = texts.shape[1]
    first, last = _fetch(texts, 0, 4), _fetch(texts, length - 4, 4)
    return _mix(numpy.uint64(length) + (first << numpy.uint64(3)), last, _multiplier(length))


def _hash_8_to_16(texts: Texts) -> Words:
    length = texts.shape[1]
    multiplier = _multiplier(length)
    first, last = _fetch(texts, 0) + _K2, _fetch(texts, length - 8)
    return _mix(_rotate(last, 37) * multiplier + first, (_rotate(first, 25) + last) * multiplier, multiplier)


def _hash_17_to_32(texts: Texts) -> Words:
    length = texts.shape[1]
    multiplier = _multiplier(length)
    first, second = _fetch(texts, 0) * _K1, _fetch(texts, 8)
    last, last_but_one = _fetch(texts, length - 8) * multiplier, _fetch(texts, length - 16) * _K2
    return _mix(
        _rotate(first + second, 43) + _rotate(last, 30) + last_but_one,
        first + _rotate(second + _K2, 18) + last,
        multiplier,
    )


def _multiplier(length: int) -> numpy.uint64:
    return numpy.uint64((int(_K2) + 2 * length) & _ALL)


def _word(column: Any) -> Words:
    return column.astype(numpy.uint64)


def _fetch(texts: Texts, at: int, size: int = 8) -> Words:
    """Return the `size` bytes from `at` on of each text, the lowest byte first."""
    return _word(numpy.ascontiguousarray(texts[:, at : at + size]).view(f"<u{size}")[:, 0])


def _rotate(words: Words, bits: int) -> Words:
    return (words >> numpy.uint64(bits)) | (words << numpy.uint64(64 - bits))


def _shift_mix(words: Words) -> Words:
    return words ^ (words >> numpy.uint64(47))


def _mix(low: Words, high: Words, multiplier: numpy.uint64) -> Words:
    first = _shift_mix((low ^ high) * multiplier)
    return _shift_mix((high ^ first) * multiplier) * multiplier
