"""The errors in which a call to an actor of a run may end. Pure.

`Died`       the actor's process is gone; the call's work is lost, and a successor may be started
`Failed`     the actor raised an error and lives; its subclass `Refused` says that the input was wrong (ValueError)
"""

from __future__ import annotations


class ActorError(RuntimeError):
    """An actor's call ended without a value."""


class Died(ActorError):
    """The actor's process is gone."""


class Failed(ActorError):
    """The actor raised an error and lives. `cause`: that error."""

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause

    @property
    def reason(self) -> str:
        """The last line of the actor's error, without the traceback."""
        return (str(self.cause).strip() or repr(self.cause)).splitlines()[-1]


class Refused(Failed):
    """The actor refused its input (ValueError): the user can correct it."""


def reason_of(error: BaseException) -> str:
    """Why a call ended without a value, for a message: without the traceback of the actor's process."""
    return error.reason if isinstance(error, Failed) else str(error) or repr(error)
