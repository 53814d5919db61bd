"""Agents as environments: programs that somebody already has, which call the policy over HTTP by themselves.

`environment.py` is the environment `Agent`. It plays a task with a command of its own (`command.py`) or with an async
function that many trajectories share (`called.py`); `kept.py` bounds the processes of both, and `result.py` reads what
an agent reports. Nothing here knows tokens: `actors.endpoint` answers the calls.
"""
