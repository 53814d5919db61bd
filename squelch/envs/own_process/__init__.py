"""Environments in a process of their own, so that nothing that they do can stop, slow or write into the player's
process."""
