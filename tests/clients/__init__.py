"""Clients that others wrote, unmodified, against the endpoint. Each runs in an environment of its own."""
