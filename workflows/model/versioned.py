"""The version that every result carries, so that a reader of an old history or of another program knows its format."""

from __future__ import annotations

from dataclasses import dataclass

#: The version of all formats so far.
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Versioned:
    """A result of an activity or of a run, or the response to a query or an update.

    The data converter writes a JSON object with the fields by their names. A reader ignores fields that it does not
    know, so that a new field keeps the version. When a field is removed, or changes its meaning, the class sets a
    higher default, which older readers reject: raises ValueError.
    """

    format_version: int = FORMAT_VERSION  # of this object's format

    def __post_init__(self) -> None:
        if self.format_version > (newest := type(self).format_version):
            raise ValueError(
                f"{type(self).__name__} has format {self.format_version}, but this program reads up to {newest}"
            )
