"""Results of a study: tidy rows with the environment, as a table, as JSON, as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusebench.ops import checks
from fusebench.report.table import Column, render

SCHEMA = 1


@dataclass
class Results:
    """What a study found.

    study: its name. rows: one dict each, ready for JSON. environment: where it ran.
    settings: what was asked for. tables: the sets of columns shown, one below the other.
    notes: lines below the tables.
    interrupted: the study was ended early, and only finished rows have figures.
    command: the command line that asked for it; None where it was called from Python.
    """

    study: str
    rows: list[dict[str, Any]]
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    tables: Sequence[Sequence[Column]] = ()
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    command: str | None = None

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("failure")]

    def table(self, *, width: int = 100, color: bool = False) -> str:
        """The rows as text that fits `width` columns, with the notes below."""
        return render(self.rows, self.tables, self.notes, width=width, color=color)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "study": self.study,
            "command": self.command,
            "settings": self.settings,
            "environment": self.environment,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "rows": self.rows,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The results as JSON; written to `path` too where given, whole or not at all."""
        text = json.dumps(_finite(self.to_dict()), indent=1) + "\n"
        if path is not None:
            write(path, text)
        return text

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line per row; intervals become three columns, lists are left out."""
        flat = [_flat(row) for row in self.rows]
        names = list(dict.fromkeys(name for row in flat for name in row))
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        if path is not None:
            write(path, out.getvalue())
        return out.getvalue()

    def to_parquet(self, path: str | Path) -> None:
        """The columns of `to_csv` as Parquet; needs pyarrow (the extra `parquet`)."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError(
                "Parquet needs pyarrow: pip install 'fusebench[parquet]'"
            ) from error  # fmt: skip
        flat = [_flat(row) for row in self.rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), str(path))


def load(path: str | Path) -> Results:
    """Read a results file; ValueError for one that is not of this schema."""
    try:
        data = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise checks.refuse("results", "FILE", f"is {str(path)!r}, not a file", "a file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"results: {path} is not JSON ({error})") from None
    version = data.get("schema") if isinstance(data, dict) else None
    if version != SCHEMA:
        raise checks.refuse("results", f"schema of {path}", f"is {version!r}", f"{SCHEMA}")
    rows = data.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise checks.refuse("results", f"rows of {path}", "are of another kind", "a list of rows")
    for name in ("environment", "settings"):
        if not isinstance(data.get(name, {}), dict):
            raise checks.refuse("results", f"{name} of {path}", f"is {data[name]!r}", "a table")
    for row in rows:
        samples = row.get("samples_ms") or []
        good = isinstance(samples, list) and all(_positive(s) for s in samples)
        if not good or not isinstance(row.get("variant", ""), str | None):
            raise checks.refuse(
                "results", f"a row of {path}", "is not as a study wrote it",
                "a name as variant, and numbers above 0 as samples_ms",
            )  # fmt: skip
    names = ("rows", "environment", "settings", "notes", "interrupted", "command")
    return Results(data.get("study", "?"), **{n: data[n] for n in names if n in data})


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def write(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: to a new file beside it, which then takes its place."""
    path = Path(path)
    if not path.parent.is_dir():
        raise checks.refuse("results", "FILE", f"is {str(path)!r}", "a path in an existing folder")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _finite(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{name}_{k}": v for k, v in value.items()})
        elif not isinstance(value, (list, tuple)):
            flat[name] = value
    return flat
