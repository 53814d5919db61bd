"""What pages presume is there once it is asked for."""

from pathlib import Path
from unittest.mock import Mock

from tests.walk.presumed import Wanted, presume


def test_a_cluster_is_started_beside_a_folder_of_that_name_and_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "rewards.npz").write_text("the page's own")
    shell = Mock()
    for name in ("cluster", "rewards.npz"):
        presume(name, Wanted(Mock(), tmp_path, shell))
    assert shell.call_args.args[0].startswith("ray start --head")
    assert (tmp_path / "rewards.npz").read_text() == "the page's own"
