"""The commands that read files which any trainer can write (docs/guide/use-with-other-trainers.md). They need no run.

    filter          which groups the filter keeps, from rewards
    mi              the mutual-information proxies of a score matrix
    score           the same from prompts and reasonings, which it scores
    monitor         the same for each new step of a run that another trainer writes
    score_answers   the answers of `squelch score` as JSON and as text
    score_evidence  `squelch score --scorer`, for policies whose weights nobody has

They read and print; the functions of `squelch.kit.api` compute. None of them starts Ray or vLLM.
"""
