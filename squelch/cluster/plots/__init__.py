"""How figures look, and how dashboards are drawn without Grafana. Reports and docs draw every figure with this package.

    style             colours, sizes, and the SVG: light and dark, with a title and a description for screen readers
    draw              lines with intervals, labels at their ends, dots, bars
    panels            a dashboard, or a panel of it, drawn from the answers of a Prometheus in the committed layout
    panel_drawings    how each type of panel is drawn: one table

Figures are drawn by matplotlib, which is imported only when something is drawn, so that no other command waits for it.
Nothing here reads a run's folder. One figure is drawn at a time in a process (`style.render`), because matplotlib's
settings are global; a second thread waits for the first, which is bounded by the size of a figure.
"""
