"""How benchmarks say what they found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

# A pipe is no reason to cut a table.
console = Console() if sys.stdout.isatty() else Console(width=200)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; numbers are right-aligned."""
    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*map(str, row))
    console.print(shown)


def milliseconds(seconds: Sequence[float], percent: float) -> str:
    """A percentile of times, in milliseconds."""
    return f"{np.percentile(seconds, percent) * 1000:.2f}"


def resident_mb() -> float:
    """Memory of this process that is in RAM, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000
