"""Runs on two hosts of this machine, faults that are injected into them, and the verdict on what they left."""
