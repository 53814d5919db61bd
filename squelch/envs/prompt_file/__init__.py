"""A file of prompts and reward functions as an environment (docs/guide/bring-your-own.md).

rows           the file: one conversation a row, its other columns, and the split by content
rewards        reward functions of the user, with TRL's signature, and what they may return
environment    the environment, in a process of its own: it opens the file and calls the functions

waits for                             unblocked by      bound, and what then
the file to be opened, in `make`      the file system   `timeout_s` and the start of a process; the run is refused
the rewards of a group                the functions     `timeout_s`; the process is ended, the group fails by name
"""
