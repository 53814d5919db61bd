"""Do the findings stay silent in healthy runs, and do they name what was planted? (docs/reference/findings.md)"""
