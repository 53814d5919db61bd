"""`squelch.kit.records.splits` under the name that environments of others import; no module of Squelch does."""

from squelch.kit.records.splits import (
    MAX_DRAWS,
    SPLITS,
    VALIDATION_SHARE,
    Split,
    check_split,
    no_task,
    split_of,
    task_key_of,
)

__all__ = ["MAX_DRAWS", "SPLITS", "VALIDATION_SHARE", "Split", "check_split", "no_task", "split_of", "task_key_of"]
