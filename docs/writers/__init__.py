"""Writes the pages and pictures that are made from the code: `python -m docs.writers.NAME`.

    memory              docs/reference/memory.md, from the plans of all recipes
    schema              docs/reference/schema.md, from the schema of the archive
    watch_picture       docs/watch.svg, from a run's folder
    reasoning_picture   docs/reasoning-view.svg, from a run's folder

Settings, metrics, rules and the names of other trainers are written by the modules that hold them.
"""
