"""Readers of the files that other trainers write (docs/guide/use-with-other-trainers.md).

format          what is said of a format: its files, its origin, its traits
formats         how each trainer's files are recognised, what they hold, which weights sampled them
format_rows, message_graph, chat_rows, trajectory_rows    what a record of each holds, as rows
harbor_trials   the trajectories beside a trial's result
records         the records of a file of any type, one after another
rows            the one reader: the rows of a file or folder, whatever wrote it
reward_tables   rewards by group
score_files     the rows of one step of a file, for `squelch score`
"""
