"""How much there is to read, by folder, and of `squelch` by the folders in it: `python -m tests.size`.

Code lines are lines with code on them: no blank lines, comments or docstrings. Statements and tokens, docstrings left
out again, do not depend on how code is laid out. Of other suffixes the lines with anything on them count."""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
PRODUCT = "squelch"
"""The folder that is installed; its sum is a row, and so is each folder in it."""
UNREAD = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
OTHER = (".html", ".j2", ".js", ".css", ".sh", ".yaml", ".yml", ".csv", ".json", ".md")


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """The statements that are strings and nothing else: docstrings, and those below a field or a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def python(text: str) -> Counter[str]:
    """Code lines, statements and tokens of a Python file."""
    tree = ast.parse(text)
    said = {line for node in docstrings(tree) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in UNREAD and not (token.type == tokenize.STRING and token.start[0] in said)
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - sum(1 for _ in docstrings(tree))
    return Counter({"code lines": len(lines), "statements": statements, "tokens": len(tokens)})


def measured(file: Path) -> Counter[str]:
    """What a file adds to its folder's row; empty for suffixes that nobody reads."""
    if file.suffix == ".py":
        return python(file.read_text(encoding="utf-8"))
    if file.suffix in OTHER:
        return Counter({file.suffix: sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())})
    return Counter()


def by_folder() -> dict[str, Counter[str]]:
    """The files that git knows, by their folder, the product's sum first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in (path for path in tracked() if len(path.parts) > 1 and not (ROOT / path).is_symlink()):
        counts, top = measured(ROOT / path), path.parts[0]
        found["product" if top == PRODUCT else top] += counts
        if top == PRODUCT:
            found["/".join(path.parts[:-1][:2])] += counts
    return {"product": found.pop("product"), **dict(sorted(found.items()))}


def main() -> None:
    """Prints the table."""
    columns = ("code lines", "statements", "tokens")
    print("".join(("folder".ljust(16), *(column.rjust(12) for column in columns), "  lines of others")))
    for folder, counts in by_folder().items():
        others = "  ".join(f"{suffix[1:]} {counts[suffix]}" for suffix in OTHER if counts[suffix])
        print("".join((folder.ljust(16), *(f"{counts[column]:12,}" for column in columns), f"  {others}")))


if __name__ == "__main__":
    main()
