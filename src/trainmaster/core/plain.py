"""Equality, hash and text of plain data, written once: where attrs makes them for each class, they are half of the cost of loading it.

A class on the way to the first program is `@attrs.frozen(slots=True, eq=False, repr=False)` and a `Plain`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Plain:
    """A class whose instances are equal where class and fields are equal, and hashable where the fields are."""

    __slots__ = ()
    __attrs_attrs__: ClassVar[Any]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((self.__class__, _values(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.__attrs_attrs__)
        return f"{self.__class__.__name__}({fields})"


def _values(instance: Any) -> tuple[Any, ...]:
    return tuple([getattr(instance, field.name) for field in instance.__attrs_attrs__])
