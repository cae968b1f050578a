"""`sero data generate webshop`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_envs.webshop.generated import read_source
from agent_envs.webshop.shop import load_shop
from tests.trainer.cli.conftest import Sero


def test_files_load_as_the_shop_that_was_asked_for(sero: Sero, tmp_path: Path) -> None:
    words = ["data", "generate", "webshop", "--n", "60", "--out", tmp_path, "--seed", "3"]
    outcome = sero(*words, "--human", "1", "--categories", "garden", "grocery", "--json")
    assert outcome.code == 0, outcome.errors
    figures = outcome.figures
    text = "generated:standard?seed=3&n=60&human=1.0&categories=garden,grocery"
    assert figures["source"] == text
    assert figures["files"] == ["items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"]
    assert figures["bytes"] == sum((tmp_path / name).stat().st_size for name in figures["files"])
    shop = load_shop(tmp_path)
    assert len(shop.catalogue) == figures["products"] == 60
    assert shop.revision == load_shop(text).revision
    assert {product.category for product in shop.catalogue} == {"garden", "grocery"}


def test_a_thousand_products_get_the_names_that_the_original_looks_for(
    sero: Sero, tmp_path: Path
) -> None:
    words = ["data", "generate", "webshop", tmp_path, "--preset", "small", "--n", "1000", "--json"]
    assert sero(*words).figures["written"] is True
    again = sero(*words)
    assert (again.code, again.figures["written"]) == (0, False)
    assert sorted(path.name for path in tmp_path.glob("items*")) == [
        "items_human_ins.json", "items_ins_v2_1000.json", "items_shuffle_1000.json",
    ]  # fmt: skip


def test_another_shop_is_refused_there(sero: Sero, tmp_path: Path) -> None:
    words = ["data", "generate", "webshop", "--preset", "small", "--out", tmp_path]
    assert sero(*words).code == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = sero(*words, "--seed", "1")
    assert outcome.code == 2
    assert str(tmp_path) in outcome.errors
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--n", "0"], "products"),
        (["--seed", "-1"], "seed"),
        (["--groups", "9"], "groups"),
        (["--human", "2"], "human"),
        (["--categories", "toys"], "toys"),
    ],
)
def test_nonsense_is_refused(sero: Sero, tmp_path: Path, words: list[str], named: str) -> None:
    outcome = sero("data", "generate", "webshop", "--out", tmp_path / "x", *words)
    assert outcome.code == 2
    assert named in outcome.errors
    assert not (tmp_path / "x").exists()


def test_the_text_names_every_knob() -> None:
    from trainer.cli.data_generate_webshop import Args, shop_spec

    args = Args(Path("x"), n=5, preset="large", seed=2, groups=1, instructed=0.5, human=0.25)
    text = "generated:large?seed=2&n=5&groups=1&instructed=0.5&human=0.25"
    assert shop_spec(args) == read_source(text)
