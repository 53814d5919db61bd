"""Writes the files in the folder `live` beside this module from a bank of live runs (research/check_bank):
`python -m tests.kit.checks.write_live_files FOLDER`, the folder of the bank's runs. They are cut from what TRL's
trainer left, and nothing in them is changed."""

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq

FOLDER = Path(__file__).with_name("live")
COMPLETIONS = ("clean", "clean-tools")
"""Cells of whose first step what TRL wrote is kept."""
TURNS = ("clean-tools", "drift")
ROWS = 24
"""Of the first step's calls."""


def main() -> None:
    root = Path(sys.argv[1])
    shutil.rmtree(FOLDER, ignore_errors=True)
    for cell in COMPLETIONS:
        name = "completions_00001.parquet"
        _write(root / cell / "completions" / name, FOLDER / cell / name)
    for cell in TURNS:
        _write(root / cell / "turns" / "turns_0.parquet", FOLDER / f"turns-{cell}.parquet", ROWS)
    (FOLDER / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (root / "policy" / name).is_file():
            shutil.copyfile(root / "policy" / name, FOLDER / "tokenizer" / name)


def _write(source: Path, target: Path, rows: int | None = None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    table = pq.read_table(source).replace_schema_metadata(None)
    pq.write_table(table if rows is None else table.slice(0, rows), target, compression="zstd", write_statistics=False)


if __name__ == "__main__":
    main()
