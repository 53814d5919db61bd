"""`squelch.kit.records.pictures` under the name that environments of others import; no module of Squelch does."""

from squelch.kit.records.pictures import Picture, Shown, shown_of, text_of

__all__ = ["Picture", "Shown", "shown_of", "text_of"]
