"""Every claim of the paper that this scale can carry, judged by runs of the real system (`study.py`)."""
