"""The commands that read files which any trainer can write (docs/guide/use-with-other-trainers.md). They need no run.

    filter          which groups the filter keeps, from rewards
    mi              the mutual-information proxies of a score matrix
    score           the same from prompts and reasonings, which it scores
    formats         the files that trainers write: how each is recognised, what it holds, which weights sampled it
    records         the records of a file of any type, one after another
    score_files     the rows of one step of a file, for `squelch score`
    score_answers   the answers of `squelch score` as JSON and as text

They read and print; the functions of `squelch.kit.api` compute. None of them starts Ray or vLLM.
"""
