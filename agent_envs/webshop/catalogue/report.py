"""What was left out of a shop and why, and what is odd about what was kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_envs.webshop.catalogue.cleaning import Reason

EXAMPLES = 1000
"""Entries of one reason that are kept by name; all are counted."""
EXAMPLE_BYTES = 512 << 10
"""Of one reason, as they are written: the header of a store holds all of them."""
ASIN_SHOWN, WHY_SHOWN = 40, 400
"""Characters of an example; more are cut off."""

LEFT_OUT = (
    Reason.NO_ASIN,
    Reason.NAN_ASIN,
    Reason.LONG_ASIN,
    Reason.REPEATED_ASIN,
    Reason.LONG_TEXT,
    Reason.NO_INSTRUCTION,
    Reason.NO_GOAL_ATTRIBUTES,
    Reason.NO_COMBINATION,
    Reason.UNKNOWN_PRODUCT,
)
"""Reasons for which a product or an instruction is left out; the others are only noted."""

MEANING: dict[Reason, str] = {
    Reason.NO_ASIN: "products without an asin",
    Reason.NAN_ASIN: "products whose asin is 'nan'",
    Reason.LONG_ASIN: "products whose asin has more than 10 characters",
    Reason.REPEATED_ASIN: "products whose asin came before (the first one counts)",
    Reason.LONG_TEXT: "products with texts too long for a page",
    Reason.NO_INSTRUCTION: "human instructions without a text",
    Reason.NO_GOAL_ATTRIBUTES: "instructions without attributes",
    Reason.NO_COMBINATION: "synthetic instructions for products with an option group of no values",
    Reason.UNKNOWN_PRODUCT: "human instructions whose product is not among these",
    Reason.OPTION_COLLISION: "products with two option groups of the same name in lower case",
    Reason.VALUE_COLLISION: "products with two option values of the same text once cleaned",
    Reason.UNREADABLE_PRICE: "products whose price cannot be read",
    Reason.NOT_IN_ATTRIBUTES: "products that the attribute file does not know",
}
"""What is counted, by reason."""


def cut(text: str, length: int) -> str:
    """The start of a text that is longer than `length`.

    >>> cut("B000000001", 10), cut("B0000000012", 10)
    ('B000000001', 'B000000...')
    """
    return text if len(text) <= length else text[: length - 3] + "..."


@dataclass(slots=True)
class Report:
    """Counts by reason, and examples: (asin, what exactly)."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _bytes: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    def add(self, reason: Reason, asin: str, why: str, number: int = 1) -> None:
        """Note one more (or `number` more) for this reason."""
        self.counts[str(reason)] += number
        kept = self.examples.setdefault(str(reason), [])
        if len(kept) < EXAMPLES and self._bytes[str(reason)] < EXAMPLE_BYTES:
            example = cut(asin, ASIN_SHOWN), cut(why, WHY_SHOWN)
            kept.append(example)
            self._bytes[str(reason)] += len(json.dumps(example))

    def skip_counts(self) -> dict[str, int]:
        """How many were left out, by reason."""
        return {str(r): self.counts[str(r)] for r in LEFT_OUT if self.counts[str(r)]}

    def note_counts(self) -> dict[str, int]:
        """How many are odd but there, by reason."""
        return {str(r): self.counts[str(r)] for r in Reason if r not in LEFT_OUT and self.counts[r]}

    def skip_details(self) -> tuple[tuple[str, str, str], ...]:
        """(asin, reason, what exactly) of what was left out, at most `EXAMPLES` of a reason."""
        return tuple(
            (asin, str(reason), why)
            for reason in LEFT_OUT
            for asin, why in self.examples.get(str(reason), ())
        )

    def as_dict(self) -> dict[str, Any]:
        """For the header of a store."""
        return {"counts": dict(sorted(self.counts.items())), "examples": self.examples}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Report:
        """Inverse of `as_dict`."""
        examples = {
            reason: [(asin, why) for asin, why in pairs]
            for reason, pairs in told.get("examples", {}).items()
        }
        return cls(Counter(told.get("counts", {})), examples)
