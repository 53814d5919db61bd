"""Runs model-written programs in isolation; docs/sandbox.md describes the isolation and the remaining risks."""

from envs.sandbox.limits import Limits, SandboxConfig
from envs.sandbox.pool import Pool, Question, Run, shared_pool
from envs.sandbox.verdicts import Test, Verdict, judge

__all__ = ["Limits", "Pool", "Question", "Run", "SandboxConfig", "Test", "Verdict", "judge", "shared_pool"]
