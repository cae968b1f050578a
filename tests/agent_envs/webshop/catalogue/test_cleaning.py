"""Cleaning of raw entries: the original's rules, and defined values where it has none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.errors import CorruptData
from agent_envs.webshop.catalogue.catalogue import decode_product, encode_product
from agent_envs.webshop.catalogue.cleaning import (
    Facts,
    Reason,
    asin_of,
    clean_facts,
    clean_instructions,
    clean_product,
    fold,
    price_tag,
    read_prices,
)
from agent_envs.webshop.model import Product
from tests.agent_envs.webshop.catalogue.raws import options, raw_product


def cleaned(**changes: Any) -> Product:
    return clean_product(raw_product(**changes), Facts(("light",)))[0]


def reasons(**changes: Any) -> list[Reason]:
    return [reason for reason, _ in clean_product(raw_product(**changes), Facts(()))[1]]


def test_an_ordinary_product() -> None:
    raw = raw_product(
        customization_options={
            "Size": [{"value": " XL "}, {"value": "S/M"}],
            "Color": [{"value": "Red", "image": "red.jpg"}, {"value": "Blue", "image": None}],
        }
    )
    product, notes = clean_product(raw, Facts(("light", "soft"), "Find it", ("soft",)))
    assert notes == []
    assert product == Product(
        asin="B000000001",
        title="Thing B000000001",
        description="A thing.",
        bullets=("light ", "red "),
        price_tag="$12.5",
        price_range=(12.5,),
        category="garden",
        query="console tables",
        product_category="Home & Kitchen › Furniture",
        options=(("size", ("xl", "s | m")), ("color", ("red", "blue"))),
        attributes=("light", "soft"),
        image="https://example.org/1.jpg",
        option_images=(("red", "red.jpg"),),
    )


@pytest.mark.parametrize(
    ("pricing", "prices", "tag"),
    [
        ("$22.90", (22.9,), "$22.9"),
        ("", (100.0,), "$100.0"),
        (None, (100.0,), "$100.0"),
        (..., (100.0,), "$100.0"),
        ("$3 - $7.50", (3.0, 7.5), "$3.0 to $7.5"),
        ("$1,234.56", (1234.56,), "$1234.56"),
        ("from 9 $3.00 to $4.00 or $5.00", (3.0, 4.0), "$3.0 to $4.0"),
        ("USD 5 $6", (6.0,), "$6.0"),
        ("$8.00 - $6.00", (8.0, 6.0), "$8.0 to $6.0"),
        ("$٣.٥", (3.5,), "$3.5"),
    ],
)
def test_prices(pricing: Any, prices: tuple[float, ...], tag: str) -> None:
    product = cleaned(pricing=pricing)
    assert (product.price_range, product.price_tag) == (prices, tag)


@pytest.mark.parametrize("pricing", ["free", "12.50", "$", "$1.2.3", "$" + "9" * 400, "$-"])
def test_prices_that_cannot_be_read_are_the_default_and_noted(pricing: str) -> None:
    """The original stops with an exception of the library at each of these."""
    assert cleaned(pricing=pricing).price_tag == "$100.0"
    assert reasons(pricing=pricing) == [Reason.UNREADABLE_PRICE]


def test_an_unreadable_part_of_a_range_is_left_out() -> None:
    assert cleaned(pricing="$ - $7.50").price_range == (7.5,)


@given(st.lists(st.floats(0, 1e6).map(lambda x: round(x, 2)), min_size=1, max_size=4))
def test_written_prices_are_read_back(prices: list[float]) -> None:
    read = read_prices(" - ".join(f"${price:,.2f}" for price in prices))
    assert read == tuple(prices[:2])
    assert price_tag(read).count("$") == len(read)


def test_missing_keys_are_empty() -> None:
    product, notes = clean_product({"asin": "B000000001"}, Facts(()))
    assert product == Product("B000000001", "", "", (), "$100.0", (100.0,), "", "", "", (), ())
    assert notes == []
    nulls = dict.fromkeys(raw_product(), None) | {"asin": "B000000001"}
    assert clean_product(nulls, Facts(()))[0] == product


def test_an_empty_title_stays_empty() -> None:
    assert cleaned(name="").title == ""


def test_bullets_of_one_text_and_no_images() -> None:
    assert cleaned(small_description="one text").bullets == ("one text",)
    assert cleaned(small_description="").bullets == ("",)
    assert cleaned(small_description=[]).bullets == ()
    assert cleaned(images=[]).image == ""
    assert cleaned(images=[None, "second"]).image == ""


def test_attributes() -> None:
    known, _ = clean_product(raw_product(), Facts(("light",)))
    nothing, _ = clean_product(raw_product(), Facts(()))
    keyless, _ = clean_product(raw_product(), clean_facts("A", {"instruction": "x"}))
    unknown, notes = clean_product(raw_product(), None)
    assert [p.attributes for p in (known, nothing, keyless, unknown)] == [
        ("light",),
        (),
        ("DUMMY_ATTR",),
        ("DUMMY_ATTR",),
    ]
    assert [reason for reason, _ in notes] == [Reason.NOT_IN_ATTRIBUTES]


def test_option_groups_without_values() -> None:
    """Null is no group; an empty list or text is a group of no values."""
    product = cleaned(customization_options={"A": None, "B": [], "C": "", "D": [{"value": "x"}]})
    assert product.options == (("b", ()), ("c", ()), ("d", ("x",)))
    for empty in (None, "", {}, []):
        assert cleaned(customization_options=empty).options == ()


def test_option_values_keep_order_and_repetitions() -> None:
    product = cleaned(customization_options=options(Size=["M", "S", " m", "A/B/C", ""]))
    assert product.options == (("size", ("m", "s", "m", "a | b | c", "")),)
    assert cleaned(customization_options={"Size": [{"value": None}, {}]}).options == (("size", ()),)


def test_the_last_image_of_a_value_counts() -> None:
    values = [{"value": "red", "image": "1"}, {"value": "RED", "image": "2"}]
    assert cleaned(customization_options={"Color": values}).option_images == (("red", "2"),)
    values.append({"value": "red"})
    assert cleaned(customization_options={"Color": values}).option_images == ()


def test_o17_groups_and_values_that_become_one_are_named() -> None:
    """The original's rule: the later group's values, at the earlier group's place."""
    custom = options(Color=["a"], Size=["s"], COLOR=["b"])
    product, notes = clean_product(raw_product(customization_options=custom), Facts(()))
    assert product.options == (("color", ("b",)), ("size", ("s",)))
    ((reason, why),) = notes
    assert reason == Reason.OPTION_COLLISION
    assert "'Color'" in why
    assert "'COLOR'" in why
    custom = options(Color=["Red", "red ", "Red"])
    product, notes = clean_product(raw_product(customization_options=custom), Facts(()))
    assert product.options == (("color", ("red", "red", "red")),)
    ((reason, why),) = notes
    assert reason == Reason.VALUE_COLLISION
    assert "'Red'" in why
    assert "'red '" in why


@pytest.mark.parametrize(
    ("asin", "reason"),
    [
        ("B000000001", None),
        ("x", None),
        ("1234567890", None),
        ("12345678901", Reason.LONG_ASIN),
        ("nan", Reason.NAN_ASIN),
        (float("nan"), Reason.NAN_ASIN),
        ("", Reason.NO_ASIN),
        (None, Reason.NO_ASIN),
        (..., Reason.NO_ASIN),
        ("ééééééééééé", Reason.LONG_ASIN),
        ("éééééééééé", None),
    ],
)
def test_asins(asin: Any, reason: Reason | None) -> None:
    _, note = asin_of(raw_product(asin=asin), 7)
    assert (note and note[0]) == reason


@pytest.mark.parametrize(
    ("changes", "key", "found"),
    [
        ({"name": 3}, "name", "int"),
        ({"full_description": ["x"]}, "full_description", "a list"),
        ({"small_description": [1]}, "small_description", "int"),
        ({"small_description": {"a": 1}}, "small_description", "an object"),
        ({"pricing": 12.5}, "pricing", "float"),
        ({"images": "x"}, "images", "str"),
        ({"images": [3]}, "images[0]", "int"),
        ({"query": []}, "query", "a list"),
        ({"customization_options": ["x"]}, "customization_options", "a list"),
        ({"customization_options": {"Size": "XL"}}, "'Size'", "str"),
        ({"customization_options": {"Size": ["XL"]}}, "'Size'", "str"),
        ({"customization_options": {"Size": [{"value": 3}]}}, "'Size'", "int"),
        ({"customization_options": {"Size": [{"value": "3", "image": 1}]}}, "image", "int"),
    ],
)
def test_values_of_another_type_are_errors_that_name_them(
    changes: dict[str, Any], key: str, found: str
) -> None:
    with pytest.raises(CorruptData) as caught:
        clean_product(raw_product(**changes), None)
    for part in ("B000000001", key, found, "expected"):
        assert part in str(caught.value)


@pytest.mark.parametrize("raw", [[], "B000000001", None, 3])
def test_an_entry_that_is_no_object(raw: Any) -> None:
    with pytest.raises(CorruptData, match=r"Product 1,007 .* expected an object"):
        asin_of(raw, 1007)


@pytest.mark.parametrize("asin", [3, True, ["B000000001"]])
def test_an_asin_that_is_no_text(asin: Any) -> None:
    with pytest.raises(CorruptData, match="as asin, expected a string"):
        asin_of({"asin": asin}, 0)


def test_facts() -> None:
    told = {"attributes": ["a", "b"], "instruction": "Find", "instruction_attributes": ["a"]}
    assert clean_facts("A", told) == Facts(("a", "b"), "Find", ("a",))
    assert clean_facts("A", {}) == Facts(None, None, ())
    for wrong in ([], {"attributes": "a"}, {"instruction": 3}, {"instruction_attributes": [1]}):
        with pytest.raises(CorruptData, match="'A'"):
            clean_facts("A", wrong)


def test_human_instructions() -> None:
    ((text, attributes, chosen),) = clean_instructions("A", [{"instruction": "x"}])
    assert (text, attributes, chosen) == ("x", (), ())
    for wrong in ({}, ["x"], [{"instruction": 1}], [{"instruction_options": {"a": "b"}}]):
        with pytest.raises(CorruptData, match="'A'"):
            clean_instructions("A", wrong)


@given(st.text(max_size=10))
def test_folding_is_stable_and_blind_to_case(asin: str) -> None:
    assert fold(fold(asin)) == fold(asin) == fold(asin.lower())


texts = st.text(max_size=8)


@given(
    st.builds(
        Product,
        *(texts,) * 3,
        st.lists(texts).map(tuple),
        texts,
        st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=2).map(tuple),
        *(texts,) * 3,
        st.lists(st.tuples(texts, st.lists(texts).map(tuple)), max_size=3).map(tuple),
        st.lists(texts, max_size=3).map(tuple),
        texts,
        st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    )
)
def test_o17_products_survive_a_record(product: Product) -> None:
    assert decode_product(encode_product(product)) == product
