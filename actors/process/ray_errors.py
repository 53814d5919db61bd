"""How Ray tells of an actor whose process is gone."""

from ray.exceptions import OutOfMemoryError, RayActorError

DEAD = (RayActorError, OutOfMemoryError)
"""The second where Ray's memory monitor ended the process; it is no kind of the first."""
