"""Trees and archives of games for the tests."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.agent_envs.alfworld.household import payload

PICK = "pick_and_place_simple"
GOOD = f"{PICK}-Mug-None-Shelf-1/trial_1"
TREE = Path("json_2.1.1")


def write(folder: Path, game: Any = None, trajectory: Any = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("game.tw-pddl", game), ("traj_data.json", trajectory)):
        if isinstance(content, str):
            (folder / name).write_text(content)
        elif content is not None:
            (folder / name).write_text(json.dumps(content))


def trajectory(task_type: str = PICK, sliced: bool = False) -> dict[str, Any]:
    return {"task_type": task_type, "pddl_params": {"object_sliced": sliced, "mrecep_target": ""}}


def make_tree(root: Path) -> Path:
    """One playable trial, and one for each reason not to be."""
    split = root / TREE / "train"
    write(split / GOOD, payload(), trajectory())
    movable = "pick_and_place_with_movable_recep"
    write(split / f"{movable}-Mug-Cup-Shelf-1/trial_2", payload(), trajectory(movable))
    write(split / f"{PICK}-AppleSliced-None-Shelf-1/trial_3", payload(), trajectory(sliced=True))
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_4", None, trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_5", payload(solvable=False), trajectory())
    unchecked = payload()
    del unchecked["solvable"]
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_6", unchecked, trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_7", "{ cut off", trajectory())
    write(split / f"{PICK}-Mug-None-Shelf-1/trial_8", payload(), "[1]")
    write(split / "juggle-Mug-None-Shelf-1/trial_9", payload(), trajectory("juggle"))
    return root


def add(tar: tarfile.TarFile, name: str, data: bytes, **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
