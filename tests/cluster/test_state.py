import json
from dataclasses import asdict

import pytest

from actors.records import Task, Ticket
from cluster.errors import UserError
from cluster.state import LoopState, checkpoint_dir, checkpoints, pack_ticket, prune, read_state


def save(run_dir, step, **state):
    folder = checkpoint_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "loop.json").write_text(json.dumps(asdict(LoopState(clock=step, **state))))


def test_open_tickets_survive_json_unchanged(tmp_path):
    ticket = Ticket("000003-001", 3, Task("FrozenLake", 17, "train", (("size", 4),)), 16, 0, 1.0, "rollout-0")
    save(tmp_path, 2, open_tickets=[pack_ticket(ticket)])
    assert read_state(checkpoint_dir(tmp_path, 2)).tickets() == [ticket]


def test_pruning_keeps_the_newest_and_the_best_and_clears_half_written_ones(tmp_path):
    for step in (2, 4, 10, 30):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / ".step-5.partial").mkdir()
    prune(tmp_path, keep=2, best_step=4)
    assert [step for step, _ in checkpoints(tmp_path)] == [4, 10, 30]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_folder_without_its_loop_state_is_no_checkpoint(tmp_path):
    save(tmp_path, 3)
    checkpoint_dir(tmp_path, 9).mkdir()
    assert [step for step, _ in checkpoints(tmp_path)] == [3]


@pytest.mark.parametrize("text", ["{", "{}x", '{"unknown": 1}', "[]"])
def test_a_damaged_loop_state_is_named_with_the_way_out(tmp_path, text):
    save(tmp_path, 3)
    (checkpoint_dir(tmp_path, 3) / "loop.json").write_text(text)
    with pytest.raises(UserError, match=r"step-3.*damaged"):
        read_state(checkpoint_dir(tmp_path, 3))
