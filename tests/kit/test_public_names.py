"""Names that programs of others import, and that runs and jobs of earlier code hold, lie where they always lay."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "squelch.envs.pictures": "squelch.kit.records.pictures",
    "squelch.envs.settings": "squelch.kit.base.settings",
    "squelch.envs.splits": "squelch.kit.records.splits",
}
HELD_AS_TEXT = (
    *("squelch.cluster.entry:main", "squelch.cluster.cli:main", "squelch.cluster.loop.witness_process:main"),
    *("squelch.deploy.dashboards:main", "squelch.envs.remote.__main__:main", "squelch.envs.remote.openenv_bridge:main"),
    *("squelch.actors.rollout.weight_transfer:register", "squelch.actors.rollout.scheduler:GatheringScheduler"),
    *("squelch.actors.rollout.worker:RolloutWorker", "squelch.actors.play.actor:EnvironmentActor"),
    *("squelch.actors.filter.service:FilterService", "squelch.actors.scorer.actor:ScorerActor"),
    *("squelch.learner.rank:LearnerRank", "squelch.cluster.fleet.control_endpoint:ControlEndpoint"),
)
"""Programs, vLLM's plugin and scheduler, and actors' classes: entry points, commands of jobs and Ray hold these."""


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_is_the_kits_own(module: str) -> None:
    public, kit = importlib.import_module(module), importlib.import_module(PUBLIC[module])
    for name in public.__all__:
        assert getattr(public, name) is getattr(kit, name)


def test_the_package_for_trl_has_the_kits_names() -> None:
    public, kit = importlib.import_module("squelch.trl"), importlib.import_module("squelch.kit.trl")
    assert public.__all__ == kit.__all__
    assert public.GroupFilter is kit.GroupFilter
    with pytest.raises(AttributeError, match=r"'squelch.trl' has no attribute 'Absent'; public are GroupFilter"):
        public.Absent  # noqa: B018


@pytest.mark.parametrize("name", HELD_AS_TEXT)
def test_what_jobs_and_processes_hold_as_text_is_defined_where_the_text_says(name: str) -> None:
    """Not imported: some load vLLM."""
    module, _, attribute = name.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    assert re.search(rf"^(class|def) {attribute}\b", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)


def test_no_module_of_squelch_imports_by_a_name_that_is_kept_for_others() -> None:
    names = "|".join(map(re.escape, [*PUBLIC, "squelch.trl"]))
    kept = re.compile(rf"(from|import) ({names})\b|squelch\.envs import (pictures|settings|splits)\b")
    found = [path for path in (ROOT / "squelch").rglob("*.py") if kept.search(path.read_text(encoding="utf-8"))]
    assert found == []
