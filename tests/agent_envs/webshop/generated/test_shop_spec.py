"""Specifications of generated shops, and the texts that stand for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import InvalidOption
from agent_envs.webshop.generated import PRESETS, ShopSpec, read_source, source_text
from agent_envs.webshop.generated.spec import CATEGORIES, LARGE, SMALL, STANDARD

SHARES = st.floats(0, 1)
SPECS = st.builds(
    lambda preset, **fields: replace(PRESETS[preset], **fields),
    st.sampled_from(sorted(PRESETS)),
    products=st.integers(1, 10_000_000),
    seed=st.integers(0, 10**40 - 1),
    categories=st.sets(st.sampled_from(CATEGORIES), min_size=1).map(tuple),
    groups=st.integers(0, 3),
    instructed=st.none() | SHARES,
    human=SHARES,
)


@given(SPECS)
def test_a_text_reads_back_as_the_same_specification(spec: ShopSpec) -> None:
    assert read_source(source_text(spec)) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("generated", STANDARD),
        ("generated:", STANDARD),
        ("generated?n=5", replace(STANDARD, products=5)),
        ("generated:small?seed=1&n=200", replace(SMALL, seed=1, products=200)),
        ("generated:large", LARGE),
        ("generated:large?instructed=real", replace(LARGE, instructed=None)),
        ("generated?categories=garden,beauty", replace(STANDARD, categories=("beauty", "garden"))),
    ],
)
def test_what_a_text_leaves_out_is_as_in_the_preset(text: str, spec: ShopSpec) -> None:
    assert read_source(text) == spec


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generated:tiny", "standard, small, large"),
        ("generatedx", "generatedx"),
        ("shop", "shop"),
        ("generated?sed=1", "did you mean 'seed'"),
        ("generated?n=1&n=2", "twice"),
        ("generated?n", "key=value"),
        ("generated?n=-1", "whole number"),
        ("generated?n=1e3", "whole number"),
        ("generated?n=٣", "whole number"),
        (f"generated?seed={'9' * 41}", "whole number"),
        ("generated?n=0", "from 1"),
        ("generated?human=lots", "share"),
        ("generated?human=nan", "share"),
        ("generated?human=real", "share"),
        ("generated?categories=toys", "toys"),
        ("generated?categories=", "categories"),
        ("generated?groups=4", "groups"),
    ],
)
def test_a_text_that_makes_no_sense_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        read_source(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"products": 0},
        {"products": 10_000_001},
        {"products": True},
        {"products": 5.0},
        {"seed": -1},
        {"seed": "1"},
        {"groups": -1},
        {"instructed": 1.01},
        {"human": None},
        {"human": float("nan")},
        {"style": "fancy"},
        {"categories": ()},
        {"categories": ("garden", "garden")},
    ],
)
def test_a_specification_refuses_nonsense(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(fields))):
        ShopSpec(**fields)
