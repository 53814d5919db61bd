"""The page of other trainers' keys is what the tables say, and the answers to such keys are in it."""

from docs.writers.other_names import PAGE, page
from squelch.cluster.other_names import answer
from squelch.kit.importing.tables import RELEASES


def test_the_page_is_what_the_tables_say() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.writers.other_names"
    assert all(f"| {trainer} |" in written for trainer in RELEASES)


def test_a_key_of_another_trainer_is_answered_with_the_setting_or_the_reason() -> None:
    assert answer("actor_rollout_ref.rollout.n", 1) == "verl's rollout.n is sampling.group_size here."
    both = "OpenRLHF's eps_clip is learner.objective.clip_low and learner.objective.clip_high here."
    assert answer("eps_clip", 1) == both
    assert "has no counterpart. Rollouts sample from the whole distribution" in answer("rollout.top_k", 1)
    assert "loop.prompts" in answer("generation_batch_size", 1)
    assert answer("nothing_of_the_kind") == ""
