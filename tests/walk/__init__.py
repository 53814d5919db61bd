"""The walk: pages of the guide and the README, run as a reader would (`make walk`, `python -m tests.walk`).

    page --pages--> blocks --commands--> commands --session--> output, files --checks--> faults

`pages` and `commands` are pure: text in, text out. `places` makes an empty folder with a HOME for each page, and the
`squelch` that the page's mode asks for; `presumed` puts what a page presumes there; `session` runs one command after
another in one shell; `checks` says what is wrong with what a block printed and left behind.

Marks are HTML comments, which readers of a page do not see:

    <!-- walk: wheel -->                     the page's mode: the wheel of the commit, installed away from a checkout,
    <!-- walk: checkout -->                  or a clone after `make setup`
    <!-- walk: presumes NAME NAME -->        what is there before the next block, by its name in `presumed`
    <!-- file: NAME -->                      the next block is this file
    <!-- walk: output -->                    the next block is what the commands before it printed
    <!-- walk: shown -->                     the next block is no command: a figure, a fragment
    <!-- walk: exit 143 -->                  the code with which the next block's last command ends, 0 without a mark
    <!-- walk: not run: GPU -->              the next block is not run, or with `: WORDS` its commands that begin so
    <!-- walk: as PAGE -->                   the next block's commands are walked on that page, here only with --all
    <!-- walk: warns: WORDS -->              a warning of the next block, which it may print

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| the walk | a command | its end; of a server, its first right answer and SIGINT | the page ends and fails |
| a page's end | processes that its commands left | their end | they are killed, and the page fails |

A walk changes a command in two ways: placeholders (`commands.BINDINGS`), and settings that shorten (`commands.SHORT`).
"""
