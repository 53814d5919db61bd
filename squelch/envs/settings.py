"""`squelch.kit.base.settings` under the name that environments of others import; no module of Squelch does."""

from squelch.kit.base.settings import Settings

__all__ = ["Settings"]
