"""Environments. Importing this package loads none of them, nor Gymnasium: see `envs.registry`."""
