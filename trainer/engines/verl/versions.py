"""Which verl this package was written for, and a clear word where there is another or none."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from agent_envs.errors import IncompatibleExtra, MissingExtra

__all__ = ["SUPPORTED", "TESTED", "check_version", "require_verl"]

TESTED = "0.9.1"
"""The version that the tests run with."""
SUPPORTED = "0.9"
"""The releases whose trainer, losses and batches have the form that is used here."""


def require_verl() -> str:
    """The version of verl that is installed; verl itself is not imported.

    Raises:
        MissingExtra: it is not installed.
        IncompatibleExtra: it is of other releases than `SUPPORTED`.
    """
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise MissingExtra(
            f"verl is not installed; training through it needs verl {SUPPORTED}.x. Install it with "
            f"`pip install 'sero-rl[verl]'` (tested: verl {TESTED}), or train with "
            "`python -m trainer.cli.main train`, which needs none."
        ) from error
    check_version(found)
    return found


def check_version(found: str) -> None:
    """Raises `IncompatibleExtra` unless `found` is one of the `SUPPORTED` releases."""
    if found.split(".")[:2] != SUPPORTED.split("."):
        raise IncompatibleExtra(
            f"Found verl {found}, expected {SUPPORTED}.x (tested: {TESTED}): between releases its "
            "trainer, the signature of its losses and the layout of its batches change. Install "
            f"verl=={TESTED}."
        )
