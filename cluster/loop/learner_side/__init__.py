"""The coordinator's side of the learner, and what is measured there before an update.

    learning     every call to the learner, and its recovery
    ranks        one call to all ranks together, bounded and watched
    recovery     makes the weights again after ranks were lost
    decomposing  the gradient taken apart by reward variance, every `gradients.every` steps

Each module says whom it waits for.
"""
