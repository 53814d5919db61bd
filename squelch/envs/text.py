"""The characters that an observation may contain."""

_RANGES = (
    *((0x20, 0x7F), (0xA1, 0x250), (0x370, 0x530), (0x1E00, 0x1F00), (0x2010, 0x2028), (0x2030, 0x205F)),
    *((0x2070, 0x209D), (0x20A0, 0x20C0), (0x2100, 0x230C)),
)
PRINTABLE = "\n" + "".join(chr(c) for first, end in _RANGES for c in range(first, end) if chr(c).isprintable())
"""ASCII, Latin with Vietnamese, Greek, Cyrillic, dashes, quotes and primes, raised and lowered digits, currencies,
letter-like signs and fractions, arrows, operators, floor and ceiling."""
_PRINTABLE = frozenset(PRINTABLE)


def printable(text: str, max_length: int) -> str:
    """`text` as an observation may show it: characters outside `PRINTABLE` become `?`, white space other than a newline
    becomes a space, and the text is cut after `max_length` characters."""
    return "".join(c if c in _PRINTABLE else " " if c.isspace() else "?" for c in text[:max_length])


def legible(text: str, max_length: int) -> str:
    """`text` as other people's environments may show it: in any script, but without control characters and lone
    surrogates, which become `?`; white space other than a newline becomes a space. It is cut after `max_length`
    characters."""
    return "".join(c if c.isprintable() or c == "\n" else " " if c.isspace() else "?" for c in text[:max_length])
