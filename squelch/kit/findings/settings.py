"""Settings of the findings."""

from pydantic import field_validator

from squelch.kit.base.settings import Settings
from squelch.kit.findings.catalogue import entry_of


class FindingsConfig(Settings):
    """The findings: what is wrong with a run, in words (docs/reference/findings.md)."""

    ignore: tuple[str, ...] = ()
    """Names of findings that are neither looked for nor reported."""

    @field_validator("ignore")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            entry_of(name)
        return names
