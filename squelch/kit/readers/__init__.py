"""Readers of the files that other trainers write (docs/guide/use-with-other-trainers.md).

formats         how each trainer's files are recognised, what they hold, which weights sampled them
records         the records of a file of any type, one after another
rows            the one reader: the rows of a file or folder, whatever wrote it
reward_tables   rewards by group
score_files     the rows of one step of a file, for `squelch score`
"""
