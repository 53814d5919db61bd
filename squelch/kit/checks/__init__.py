"""Was this run what it seemed? Checks of the files that any trainer wrote, for `squelch check` and `squelch.check`.

    files ──readers.rows──▶ one pass over the rows ──▶ tokens, groups, rewards ────────────┐
                                                                                           ├──▶ Result: sound,
    claims (options, the trainer's config) ──▶ checkpoints ──scoring──▶ weights, temperature ┘          fault, unknown

- A check never guesses: where the files lack a column, or hold too few tokens, it is `unknown` and says what would
  decide it.
- What a healthy run may have too is no fault: allowed staleness, resampling, prompts in flight at the end, rewards that
  follow length.
- Each check states how often it is wrong about a healthy run, and how much it needs to see a fault (`catalogue.yaml`).
- Rows come one at a time; what a check keeps grows with prompts and groups, not with tokens.
- Pure, but for the checks that score under a checkpoint, which load torch when they are asked for.
"""
