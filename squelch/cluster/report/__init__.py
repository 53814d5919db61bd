"""The report of runs: the paper's figures that these runs can fill, as one HTML file with its data beside it.

    runs        reads runs, and finds the arms: runs of one configuration but for the seed
    points      figures of an arm over steps, and at the end, with intervals over seeds
    dynamics    figures 5, 7 and 10: over steps
    outcomes    figures 6, 8 and 9: at the last evaluation
    mechanism   figures 3, 11, 12 and 13: gradients, rewards by phase, format, the plane of interventions
    figures     the table of all figures, and what each needs
    page        HTML and CSV

A figure is two pure functions: `rows` computes its data from the runs, and `draw` draws these rows. The CSV beside the
report holds exactly the rows, so that whatever is drawn can be checked and drawn again. A figure without rows is not
drawn; the report says in one line which runs it needs.

Nothing waits: a report reads files, of which a run may still write (`cluster.runs.folder`), and writes its own whole.
"""
