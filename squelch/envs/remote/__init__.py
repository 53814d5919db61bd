"""Environments in another process or on another host, behind HTTP: the contract, a reference server, and bridges."""
