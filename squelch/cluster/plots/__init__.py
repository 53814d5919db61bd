"""How figures look. Reports and docs draw every figure with this package.

    style    colours, sizes, and the SVG: light and dark, with a title and a description for screen readers
    draw     lines with intervals, labels at their ends, dots, bars

Figures are drawn by matplotlib, which is imported only when something is drawn, so that no other command waits for it.
Nothing here reads a run's folder. One figure is drawn at a time in a process (`style.render`), because matplotlib's
settings are global; a second thread waits for the first, which is bounded by the size of a figure.
"""
