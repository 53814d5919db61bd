"""Wrappers that make other people's environments playable, each one file and one entry of `envs.registry.ADAPTERS`."""
