"""A TRL run whose completions are all cut inside their reasoning: python -m tests.kit.trl.cut FOLDER, in TRL's
environment. What the observer says is on standard error."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Trains for six steps."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL loads it where it is installed, which takes long
    from squelch.trl import Observer
    from tests.kit.trl import work

    folder = Path(sys.argv[1])
    work.write_byte_model(folder / "model")
    observer = Observer(every=1, export=False)
    config = work.settings(folder / "out", max_steps=6, max_completion_length=16)
    work.trained(folder / "model", config, [work.reward, observer], callbacks=[observer])


if __name__ == "__main__":
    main()
