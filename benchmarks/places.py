"""Where the benchmark keeps what it makes: everything in one ignored directory of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"

MODELS = HOME / "models"
"""GGUF files, and copies of them in other formats."""

VENVS = HOME / "venvs"
"""One virtual environment for each peer."""

LOGS = HOME / "logs"
"""What peers print."""

REPORTS = HOME / "reports"
"""Results, by the time of their run."""
