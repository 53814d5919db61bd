"""Runs model-written programs in isolation; docs/guide/sandbox.md describes the isolation and the remaining risks."""

from squelch.envs.sandbox.limits import Limits, SandboxConfig
from squelch.envs.sandbox.pool import Pool, Question, Run, shared_pool
from squelch.envs.sandbox.verdicts import Test, Verdict, judge

__all__ = ["Limits", "Pool", "Question", "Run", "SandboxConfig", "Test", "Verdict", "judge", "shared_pool"]
