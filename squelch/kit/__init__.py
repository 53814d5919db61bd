"""What a user of another trainer needs: filter, diagnosis, scoring, archive, readers, commands. Imports no other
package of Squelch.

    commands                                          `squelch filter`, `mi`, `score`, `monitor`
       │   checks                                     `squelch.check`: was a finished run what it seemed
       │      trl                                     inside TRL's trainer
    readers    │                                      files of other trainers
       └── api ┘                                      `squelch.filter`, `mi`, `score`, `Monitor`
            │
         scoring                                      a reasoning's log-likelihood under other prompts
            │
    packed, models                                    common beginnings once; model folders
            │
    archive   diagnosis   filter   pictures           a run's files; metrics of a score matrix; rules and statistics
            │
    metrics   process   records   text                `/metrics`; terminal and signals; what folders exchange; tokens
            │
    base, untrusted                                   settings, errors, durable writes; readers of hostile files

A folder imports those below it. Importing the kit loads nothing.
"""
