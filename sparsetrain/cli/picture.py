# SPDX-License-Identifier: Apache-2.0
"""Pictures that commands draw: refused early where none could be, written whole or not at all.

Matplotlib is needed for these alone (extra `plot`), and draws without a screen.
"""

from pathlib import Path
from typing import Any

from sparsetrain.cli.preflight import require_writable
from sparsetrain.cli.replaced import replaced
from sparsetrain.errors import ConfigError

_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(option: str, path: Path) -> None:
    """Look whether a picture could be drawn at `path`, which the user gave as `option`.

    Raises
    ------
    ConfigError
        If the suffix is none, nothing can be written there, or Matplotlib is missing.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{option} {path}: a picture ends in {', '.join(_SUFFIXES)}")
    require_writable(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"pictures ({option}) need Matplotlib: pip install 'sparsetrain[plot]'"
        ) from None


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure; until all of it is written, what was at `path` stays."""
    with replaced(path) as draft:
        figure.savefig(draft, dpi=120)
