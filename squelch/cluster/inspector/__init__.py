"""The web page of `squelch inspect`: reads a run's folder and shows its groups, score matrices and spans.

```
browser ──GET──▶ guard (host, token, headers) ──▶ pages ──▶ overview | groups | trajectories | matrices | timeline | ...
                                                    │               └── run folder (cluster.runs), read only
                                                    └────▶ boards ── Prometheus, if one is given
```

Nothing writes to the run, and nothing waits for the inspector. A request reads what it shows: the first page comes from
metrics, events, findings and a few score matrices (`overview`); the list of groups from the index, which is held in
memory (`groups`), and the words of its groups (`previews`); a group's tokens are read from its row groups when it is
opened (`trajectories`); metrics and spans are followed line by line (`cluster.runs.following`). The browser asks once
in two seconds whether the run has changed; a run that is over is not asked about. The dashboards' panels are drawn one
by one, each when a reader sees it (`boards`).

The URL is the state: every filter, sort and selection is a query parameter, so that a link shows what its sender saw.
Whatever a model wrote is escaped by the templates, its control characters are made visible, and the content security
policy allows no inline script or style (`guard`).
"""
