"""Names that programs of others import lie where they always lay, and are those of the kit."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "squelch.envs.pictures": "squelch.kit.records.pictures",
    "squelch.envs.settings": "squelch.kit.base.settings",
    "squelch.envs.splits": "squelch.kit.records.splits",
}


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


def test_no_module_of_squelch_imports_by_a_name_that_is_kept_for_others() -> None:
    names = "|".join(map(re.escape, [*PUBLIC, "squelch.trl"]))
    kept = re.compile(rf"(from|import) ({names})\b|squelch\.envs import (pictures|settings|splits)\b")
    found = [path for path in (ROOT / "squelch").rglob("*.py") if kept.search(path.read_text(encoding="utf-8"))]
    assert found == []
