"""The filter: statistics, rules, selection, windows. `actors.filter.service` is its Ray actor."""
