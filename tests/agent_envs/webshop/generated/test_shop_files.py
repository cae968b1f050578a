"""A generated shop on disk: the original's three files, whole or absent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent_envs.webshop.generated import generated_files, source_text
from agent_envs.webshop.generated.files import file_names, write_files
from agent_envs.webshop.generated.spec import SMALL, STANDARD
from agent_envs.webshop.shop import load_shop


@pytest.mark.parametrize("products", [1, 999, 1000])
def test_files_hold_what_is_generated(tmp_path: Path, products: int) -> None:
    spec = replace(SMALL, products=products)
    calls = []
    assert write_files(tmp_path, spec, lambda: calls.append(1))
    assert len(calls) == products
    read = [json.loads((tmp_path / name).read_text("ascii")) for name in file_names(products)]
    assert read == list(generated_files(spec))


def test_no_instruction_by_people_leaves_an_empty_file(tmp_path: Path) -> None:
    spec = replace(SMALL, products=4, human=0.0)
    write_files(tmp_path, spec)
    assert json.loads((tmp_path / "items_human_ins.json").read_text()) == {}


def test_files_and_text_are_the_same_shop(tmp_path: Path) -> None:
    spec = replace(STANDARD, products=50, seed=4)
    write_files(tmp_path, spec)
    assert load_shop(tmp_path).revision == load_shop(source_text(spec)).revision


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, SMALL, stop)
    assert list(tmp_path.iterdir()) == []
    assert write_files(tmp_path, SMALL)
    assert not write_files(tmp_path, SMALL)


def test_shops_never_mix(tmp_path: Path) -> None:
    write_files(tmp_path, SMALL)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for other in (replace(SMALL, seed=1), replace(SMALL, products=1000)):
        with pytest.raises(FileExistsError, match="another shop"):
            write_files(tmp_path, other)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "items_shuffle.json"
    theirs.write_text("[]")
    with pytest.raises(FileExistsError, match="items_shuffle"):
        write_files(tmp_path, SMALL)
    assert theirs.read_text() == "[]"


def test_a_part_that_went_missing_is_noticed(tmp_path: Path) -> None:
    write_files(tmp_path, SMALL)
    (tmp_path / "items_ins_v2.json").unlink()
    with pytest.raises(FileExistsError):
        write_files(tmp_path, SMALL)
