"""Model-written programs, run where they can do no harm; docs/sandbox.md tells how and what is left."""

from envs.sandbox.limits import Limits, SandboxConfig
from envs.sandbox.pool import Pool, Question, Run, shared_pool
from envs.sandbox.verdicts import Test, Verdict, judge

__all__ = ["Limits", "Pool", "Question", "Run", "SandboxConfig", "Test", "Verdict", "judge", "shared_pool"]
