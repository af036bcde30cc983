# SPDX-License-Identifier: Apache-2.0
"""Commands as a program calls them."""

from __future__ import annotations

import json
from typing import Any

from sparsetrain.cli import main


def told(capsys: Any, *command: Any) -> dict[str, Any]:
    """Run a command; return the JSON that it ends with."""
    capsys.readouterr()
    assert main([*map(str, command), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found
