"""Findings: what is wrong with a run, in words, from what its steps show. Pure; loads neither torch nor Ray.

    StepView ──measures──▶ flat metrics ──levels──▶ one number a finding ──Findings──▶ began, worsened, ended
    (view.py)              (history.py)             reasoning, rewards,    (finder.py)        │
                                                    updates, pace                           words.py

A run, TRL's observer, `squelch score`, `squelch monitor` and `squelch check` each fill a `StepView` with what they
have. What they lack is None, and gives no finding.

- Every finding has an entry in `catalogue.yaml`, with its words, its thresholds and its remedy, and a *level* of the
  same name in one of the modules of levels: a number that is larger the worse it is, or None where a step does not show
  it.
- A finding begins once its level was at a threshold in so many successive steps that show it; it worsens at the next
  threshold; and it ends once its level was below `clear` for as many steps. In between nothing is said, and its words
  and its severity stay those of its worst moment.
- Levels see flat metrics alone, so the metrics of a run that has ended give its findings again. Rows serve as examples.
"""
