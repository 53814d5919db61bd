"""Configurations of other trainers as recipes of Squelch.

    file ──sources──▶ keys of the trainer ──values, by its table──▶ settings; what has no counterpart ──recipe──▶ YAML

Contract:

- Nothing is executed, neither Python, nor Bash, nor a resolver of Hydra. A value that a program computes is unknown,
  and never a default.
- Each key of a trainer is mapped, has no counterpart (and the reason), or is unknown. The tables `*.csv` say which, one
  row a key and setting; `tables` has their columns. One code reads all of them.
- Without group size, batch, learning rate, model or data there is no recipe.
"""
