"""The decisive runs on Sokoban: the penalty of an action, the divisor, the regularisers."""
