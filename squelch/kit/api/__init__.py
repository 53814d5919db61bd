"""The public Python API: the filter and the diagnosis inside any trainer's process (docs/guide/python.md).

    filtering     `squelch.filter`: which groups carry a signal, from rewards
    information   `squelch.mi`: how much the reasoning depends on its input, from a score matrix
    scoring       `squelch.score`: the same from a live model, prompts and completions
    evidence      `squelch.score(..., scorer=True)`: from a model that did not sample the completions
    monitor       `squelch.Monitor`: `score` over the steps of a run, with averages, regimes and alarms
    samples       prompts and completions, as text, messages or ids, converted to X, Z and the answer
    answers       whether answers follow from their reasonings
    arrays        arrays and tensors of the caller, as numpy

                          squelch.filter   squelch.mi   squelch.score   squelch.Monitor
                                │              │              │               │
    squelch filter, mi, score ──┴──── the same functions ─────┴───────────────┘
                                               │
                              kit.filter, kit.diagnosis, kit.scoring

Contract:

- Arrays, tensors, texts, ids and a torch module go in; frozen dataclasses of numpy arrays come out. Nothing is printed.
- Bad input raises a ValueError that names the argument, or the row, and says what would be right.
- `import squelch` loads no module of this package. `filter` and `mi` load neither torch, transformers, Ray nor vLLM;
  `score` and `Monitor` load torch and transformers when they are given a model. Nothing here starts a process of Ray.
- Scoring leaves the model as it was: training mode of each module, attention implementation, weights and their dtype,
  gradients, hooks, random states (`kit.scoring.borrowed_model`). It runs in the caller's thread and waits for nobody.
- The same arguments and seed give the same result.

Public is what docs/reference/public-names.md lists; the rest of the package may change in any release. A name that will
be removed stays for one minor release, in which its use raises a DeprecationWarning with its successor
(`squelch.DEPRECATED`).
"""
