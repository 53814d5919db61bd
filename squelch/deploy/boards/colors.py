"""Colours of the panels, by Grafana's names. Lines of a chart have Grafana's own palette."""

STATES = ("orange", "yellow", "green", "purple", "blue", "red", "gray")
"""Of the states of a state timeline, in their order."""
NO_STATE = "transparent"
"""Of a state timeline where there is no state."""
HEAT_MAP = "Blues"
"""The scheme of a heat map."""
