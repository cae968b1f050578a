"""Values of callers in messages."""

from __future__ import annotations


def shown(value: object, length: int = 80) -> str:
    """The start of what `repr` says of a value, whatever it is.

    >>> shown("x"), shown(10**5000)
    ("'x'", 'a number of thousands of digits')
    """
    try:
        return f"{value!r:.{length}}"
    except ValueError:  # Python writes no such numbers, alone or in a list
        if isinstance(value, int):
            return "a number of thousands of digits"
        return f"a {type(value).__name__} with a number of thousands of digits"
