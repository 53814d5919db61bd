"""All readers of files that are fuzzed in process."""

from tests.fuzz import table_readers, text_readers
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (*text_readers.TARGETS, *table_readers.TARGETS)
