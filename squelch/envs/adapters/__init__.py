"""Wrappers of third-party environments; each is one file and one entry of `envs.registry.ADAPTERS`."""
