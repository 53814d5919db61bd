"""A bank of live runs of TRL, clean and with one fault planted in each, by which `squelch check` is judged."""
