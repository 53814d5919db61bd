"""Writes the pages and pictures that are made from the code: `python -m docs.writers.NAME`.

filter              the tables of docs/guide/filter.md, from the tables of statistics and rules
memory              docs/reference/memory.md, from the plans of all recipes
metrics             docs/reference/metrics.md and empty-panels.md, from the registry and the dashboards
other_names         docs/reference/other-trainers.md, from the tables in squelch/kit/importing
schema              docs/reference/schema.md, from the schema of the archive
settings            docs/reference/settings.md and the pages below it, from the settings' classes
watch_picture       docs/watch.svg, from a run's folder
"""
