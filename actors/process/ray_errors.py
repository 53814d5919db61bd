"""The errors with which Ray reports that an actor's process is gone."""

from ray.exceptions import OutOfMemoryError, RayActorError

DEAD = (RayActorError, OutOfMemoryError)
"""Ray's memory monitor raises OutOfMemoryError, which does not subclass RayActorError."""
