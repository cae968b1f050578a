"""What can still be told of a bank whose bytes changed: where it is damaged."""

from __future__ import annotations

from pathlib import Path

from oracles.bank_digest import row_digest

__all__ = ["damage"]

_SHOWN = 10


def damage(path: Path) -> str:
    """In words: the branches that changed, else the columns that cannot be read; or nothing.

    A page whose checksum differs is read all the same, if it can be: then the digests of the rows
    say which of them it concerns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read().to_pylist()
        changed = [
            f"{number} (task {row['task_id']!r})"
            for number, row in enumerate(rows)
            if row_digest(row) != row["digest"]
        ]
    except broken:
        changed = []
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        return f" What changed is in branch {', '.join(changed[:_SHOWN])}{more}."
    unreadable = []
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for name in file.schema_arrow.names:
                try:
                    file.read(columns=[name])
                except broken:
                    unreadable.append(name)
    except broken:
        return ""
    return f" What changed is in column {', '.join(unreadable)}." if unreadable else ""
