"""Writes the pages and pictures that are made from the code: `python -m docs.writers.NAME`.

checks              docs/reference/checks.md and the table of docs/guide/check-a-run.md, from the catalogue of checks
commands            docs/reference/commands.md, from the parsers of all commands
filter              the tables of docs/guide/filter.md, from the tables of statistics and rules
findings            docs/reference/findings.md, from the catalogue of findings
formats             the table of docs/guide/use-with-other-trainers.md, from the table of formats
memory              docs/reference/memory.md, from the plans of all recipes
metrics             docs/reference/metrics.md, from the registry and the dashboards
never_run           the last table of docs/research/results.md, from the marks of the pages
other_names         docs/reference/other-trainers.md, from the tables in squelch/kit/importing
public_names        docs/reference/public-names.md, from the list of public names and their source
schema              docs/reference/schema.md, from the schema of the archive
settings            docs/reference/settings.md and the pages below it, from the settings' classes
weight_ways         the table of docs/guide/hosts.md, from that of the ways
*_picture           pictures, from a run's folder
"""
