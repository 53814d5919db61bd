"""What must hold of `squelch filter` and `squelch mi`."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.cluster.cli import main
from squelch.kit.archive.schema import ARCHIVE_SCHEMA
from squelch.kit.commands.filter import missing_steps, read_windows
from squelch.kit.diagnosis.proxies import EmaState, proxies_of_scores, scores_of_matrix
from squelch.kit.filter.measure import GroupStatistics, score

FILTER_KEYS = {"kept", "statistic", "kept_mass", "kept_fraction", "num_zero", "rejected"}
MI_KEYS = {
    "retrieval_accuracy",
    "retrieval_chance",
    "recall",
    "mi_est",
    "mi_seq_est",
    "mi_zscore",
    "mi_zscore_ema",
    "conditional_entropy",
    "marginal_entropy",
    "upper_bound",
}
REWARDS = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [math.nan, math.nan, math.nan, 1], [1, math.nan, 0, 1]])


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def rewards_file(tmp_path: Path, **arrays: np.ndarray) -> str:
    return save(tmp_path / "r.npz", rewards=REWARDS, **arrays)


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> object:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The paragraph of an error with exit code 2."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().count("\n") == 0
    return captured.err


def mi_arrays(seed: int = 0, n: int = 4, k: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k, n)) - 20, rng.integers(2, 9, (n, k))


# filter


def test_filter_prints_the_promised_keys(tmp_path, capsys) -> None:
    found = output(capsys, "filter", rewards_file(tmp_path), "--rho", "0.5", "--epsilon", "0")
    assert found.keys() >= FILTER_KEYS
    assert found["kept"] == [1, 4]
    assert found["statistic"] == pytest.approx([0, 1 / 3, 1 / 4, None, 1 / 3])
    assert found["kept_mass"] == pytest.approx((2 / 3) / (11 / 12))
    assert (found["kept_fraction"], found["num_zero"], found["compat"]) == (0.4, 1, "paper")
    assert [(row["index"], row["reason"]) for row in found["rejected"]] == [
        (0, "zero variance"),
        (2, "below top_p cut 0.3333: score 0.25, threshold 0.4583"),
        (3, "1 survivor of 4, needs 2"),
    ]


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (["--rule", "none"], [0, 1, 2, 4]),
        (["--rule", "top_k", "--rho", "0.4"], [1, 4]),
        (["--rule", "top_k", "--rho", "0.1"], []),
        (["--rule", "top_k", "--rho", "0.1", "--compat", "ragen"], [1]),
        (["--rule", "min_p", "--rho", "0.7"], [1, 2, 4]),
        (["--rho", "1", "--include-zero"], [0, 1, 2, 4]),
        (["--rho", "1", "--no-include-zero"], [1, 2, 4]),
        (["--rule", "top_k", "--rho", "0.2", "--keep", "smallest"], [2]),
        (["--rule", "top_k", "--rho", "0.2", "--statistic", "reward_sum"], [1]),
        (["--epsilon", "0.9"], [1, 4]),
        (["--epsilon", "0.9", "--epsilon-unit", "absolute"], []),
        (["--rule", "band", "--band", "0", "0.3"], [2]),
        (["--rule", "top_p_softmax", "--rho", "0.2"], [1]),
    ],
)
def test_every_flag_of_filter_does_what_it_says(tmp_path, capsys, flags: list[str], kept: list[int]) -> None:
    assert output(capsys, "filter", rewards_file(tmp_path), *flags)["kept"] == kept


def test_filter_uses_lengths_surprisals_and_penalties(tmp_path, capsys) -> None:
    shape = REWARDS.shape
    lengths, surprisals = np.arange(20.0).reshape(shape), np.linspace(0, 1, 20).reshape(shape)
    file = rewards_file(tmp_path, lengths=lengths, surprisals=surprisals, penalties=-0.1 * (lengths % 2))
    assert output(capsys, "filter", file, "--statistic", "length", "--rule", "top_k")["statistic"][0] == 1.5
    found = output(capsys, "filter", file, "--statistic", "entropy", "--rule", "top_k")["statistic"]
    assert found[1] == pytest.approx(surprisals[1].mean())
    ragen = output(capsys, "filter", file, "--compat", "ragen")["statistic"]
    assert ragen[0] == pytest.approx(np.std([0, -0.1, 0, -0.1], ddof=1))


def test_filter_prints_a_table_for_people(tmp_path, capsys) -> None:
    assert main(["filter", rewards_file(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["kept", "groups", "3", "of", "5", "(60.0%)"]
    assert lines[-1].split()[:3] == ["4", "0.333333", "kept"]


def archive_rows(step: int, group: int, rewards: list[float], split: str = "train") -> list[dict[str, object]]:
    """Rows of ARCHIVE_SCHEMA; a NaN reward marks a failed trajectory."""
    return [
        {
            "group_id": f"{step:06d}-{group:03d}",
            "trajectory": index,
            "step": step,
            "split": split,
            "token_ids": [1, 2, 3],
            "loss_mask": [False, True, True],
            "log_probs": [0.0, -0.5, -1.5],
            "turns": [],
            "episode_return": 0.0 if math.isnan(reward) else reward,
            "format_penalty": 0.0,
            "failure_cause": "step_timeout" if math.isnan(reward) else None,
        }
        for index, reward in enumerate(rewards)
    ]


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "groups"
    folder.mkdir(parents=True)
    for step in (1, 2):
        rows = [row for group, rewards in enumerate(REWARDS) for row in archive_rows(step, group, list(rewards * step))]
        rows += archive_rows(step, 900, [1.0, 0.0], split="validation")
        rows = [rows[i] for i in np.random.default_rng(step).permutation(len(rows))]
        pq.write_table(pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA), folder / f"step-{step:06d}.parquet")
    return tmp_path / "run"


def test_a_runs_groups_are_ranked_step_by_step(tmp_path, capsys) -> None:
    folder = run_folder(tmp_path)
    found = output(capsys, "filter", str(folder), "--rule", "top_k", "--rho", "0.4")
    assert found["kept"] == [1, 4, 6, 9]
    assert [step["kept"] for step in found["steps"]] == [[1, 4], [6, 9]]
    assert found["statistic"][6] == pytest.approx(4 / 3)
    assert found["group_ids"][6] == "000002-001"
    assert found["num_groups"] == 10
    assert output(capsys, "filter", str(folder / "groups"), "--rule", "top_k", "--rho", "0.4") == found


def test_a_run_is_found_by_its_name(tmp_path, capsys, monkeypatch) -> None:
    folder = run_folder(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert output(capsys, "filter", "run") == output(capsys, "filter", str(folder))


def test_steps_that_are_missing_in_between_are_reported(tmp_path, capsys) -> None:
    """They were left out without a word."""
    folder = run_folder(tmp_path)
    whole = folder / "groups"
    (whole / "step-000002.parquet").rename(whole / "step-000005.parquet")
    table = pq.read_table(whole / "step-000005.parquet")
    steps = pa.array([5] * len(table), table["step"].type)
    pq.write_table(table.set_column(table.column_names.index("step"), "step", steps), whole / "step-000005.parquet")
    assert main(["filter", str(folder)]) == 0
    reported = capsys.readouterr()
    assert "3 steps within its range have no groups and are left out: 2, 3, 4" in reported.out + reported.err
    assert missing_steps(read_windows(run_folder(tmp_path / "other"))) == (0, [])


def test_one_parquet_file_gives_what_the_arrays_give(tmp_path, capsys) -> None:
    part = run_folder(tmp_path) / "groups" / "step-000001.parquet"
    from_file, from_arrays = output(capsys, "filter", str(part)), output(capsys, "filter", rewards_file(tmp_path))
    assert {key: from_file[key] for key in FILTER_KEYS} == {key: from_arrays[key] for key in FILTER_KEYS}
    entropy = output(capsys, "filter", str(part), "--statistic", "entropy", "--rule", "top_k")
    assert entropy["statistic"][0] == 1.0
    assert main(["filter", str(part)]) == 0


def test_scores_of_the_command_are_those_of_the_library(tmp_path, capsys) -> None:
    found = output(capsys, "filter", rewards_file(tmp_path), "--statistic", "reward_std", "--rule", "min_p")
    expected = [score("reward_std", GroupStatistics.from_row("g", 0, row)) for row in REWARDS]
    assert [math.nan if value is None else value for value in found["statistic"]] == pytest.approx(
        expected, nan_ok=True
    )


# mi


def test_mi_prints_the_promised_keys_and_the_librarys_metrics(tmp_path, capsys) -> None:
    scores, lengths = mi_arrays()
    found = output(capsys, "mi", save(tmp_path / "m.npz", log_likelihood=scores, lengths=lengths))
    expected = proxies_of_scores(scores_of_matrix(scores, lengths), ema=EmaState())
    assert found.keys() >= MI_KEYS
    for key in MI_KEYS - {"recall", "upper_bound"}:
        assert found[key] == expected.as_dict()[key], key
    assert found["recall"] == {str(k): value for k, value in expected.recall.items()}
    assert found["upper_bound"]["per_sequence"] == pytest.approx(math.log(4))
    assert found["upper_bound"]["per_token"] == pytest.approx(math.log(4) * (1 / lengths).mean())


def test_mi_says_how_sure_it_is_and_how_many_prompts_it_would_take(tmp_path, capsys) -> None:
    scores, lengths = mi_arrays(n=8)
    file = save(tmp_path / "m.npz", log_likelihood=scores, lengths=lengths)
    found = output(capsys, "mi", file, "--half-width", "0.01")
    low, high = found["interval_95"]["mi_est"]
    assert low < found["mi_est"] < high and 0 < found["null"]["mi_est"]["p_value"] <= 1
    assert found["prompts_needed"]["prompts"] == pytest.approx(8 * ((high - low) / 0.02) ** 2, rel=0.1)
    assert main(["mi", file]) == 0
    assert "p = " in capsys.readouterr().out
    few = save(tmp_path / "few.npz", log_likelihood=scores[:2][:, :, :2], lengths=lengths[:2])
    assert output(capsys, "mi", few)["no_interval_because"].startswith("2 distinct prompts")
    assert "no intervals: 2 distinct prompts" in (main(["mi", few]), capsys.readouterr().out)[1]


def test_mi_merges_identical_prompts_and_takes_compat(tmp_path, capsys) -> None:
    scores, lengths = mi_arrays()
    names = np.array(["a", "b", "a", "c"])
    file = save(tmp_path / "m.npz", log_likelihood=scores, lengths=lengths, prompt_id=names)
    assert output(capsys, "mi", file)["retrieval_chance"] == pytest.approx(1 / 3)
    assert output(capsys, "mi", file, "--compat", "ragen")["mi_est"] != output(capsys, "mi", file)["mi_est"]


def test_a_time_axis_feeds_the_average_and_yields_a_list(tmp_path, capsys) -> None:
    parts = [mi_arrays(seed) for seed in range(3)]
    arrays = {"log_likelihood": np.stack([p[0] for p in parts]), "lengths": np.stack([p[1] for p in parts])}
    found = output(capsys, "mi", save(tmp_path / "m.npz", **arrays))
    ema = EmaState()
    expected = [proxies_of_scores(scores_of_matrix(*part), ema=ema) for part in parts]
    assert [row["mi_zscore_ema"] for row in found] == [one.mi_zscore_ema for one in expected]
    one = save(tmp_path / "one.npz", log_likelihood=arrays["log_likelihood"][:1], lengths=arrays["lengths"][:1])
    assert isinstance(output(capsys, "mi", one), list)
    assert main(["mi", one]) == 0
    assert "retrieval accuracy" in capsys.readouterr().out


def test_mi_of_nothing_usable_is_null_not_nan(tmp_path, capsys) -> None:
    file = save(tmp_path / "m.npz", log_likelihood=np.full((2, 1, 2), np.nan), lengths=np.ones((2, 1)))
    found = output(capsys, "mi", file)
    assert found["mi_est"] is None and found["num_excluded"] == 2


# bad input


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"reward": REWARDS}, "`rewards`"),
        ({"rewards": REWARDS[0]}, "(num_groups, group_size)"),
        ({"rewards": np.zeros((0, 4))}, "(num_groups, group_size)"),
        ({"rewards": REWARDS, "lengths": REWARDS[:2]}, "`lengths` has shape (2, 4)"),
        ({"rewards": np.array([["a", "b"]])}, "`rewards`"),
        ({"rewards": np.array([[None, 1]], dtype=object)}, "holds Python objects"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, capsys, arrays: dict[str, np.ndarray], says: str) -> None:
    file = save(tmp_path / "bad.npz", **arrays)
    message = refusal(capsys, "filter", file)
    assert says in message and "bad.npz" in message


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rho", "0"], "--rho is 0.0; it must be in (0, 1]"),
        (["--rho", "1.5"], "(0, 1]"),
        (["--rho", "nan"], "(0, 1]"),
        (["--epsilon", "-1"], "--epsilon is -1.0; it must be at least 0"),
        (["--rule", "band", "--band", "0.8", "0.2"], "0 <= LOW <= HIGH <= 1"),
        (["--statistic", "length"], "`lengths`"),
        (["--statistic", "entropy"], "`surprisals`"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path, capsys, flags: list[str], says: str) -> None:
    assert says in refusal(capsys, "filter", rewards_file(tmp_path), *flags)


def test_an_unknown_rule_exits_with_2(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["filter", rewards_file(tmp_path), "--rule", "top_q"])
    assert stopped.value.code == 2
    assert "did you mean `top_p`?" in capsys.readouterr().err


def test_a_mass_rule_on_a_negative_statistic_is_refused(tmp_path, capsys) -> None:
    file = save(tmp_path / "n.npz", rewards=np.array([[-1.0, -2.0], [1.0, 0.0]]))
    assert "statistic=reward_sum" in refusal(capsys, "filter", file, "--statistic", "reward_sum")


def test_damaged_or_missing_files_are_named(tmp_path, capsys) -> None:
    whole = Path(rewards_file(tmp_path)).read_bytes()
    for name, data in (("half.npz", whole[: len(whole) // 2]), ("junk.npz", b"junk"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(data)
        assert name in refusal(capsys, "filter", str(tmp_path / name))
        assert name in refusal(capsys, "mi", str(tmp_path / name))
    part = run_folder(tmp_path) / "groups" / "step-000002.parquet"
    part.write_bytes(part.read_bytes()[:-200])
    assert "step-000002.parquet" in refusal(capsys, "filter", str(tmp_path / "run"))
    assert "absent.npz" in refusal(capsys, "filter", str(tmp_path / "absent.npz"))
    assert "absent.npz" in refusal(capsys, "mi", str(tmp_path / "absent.npz"))
    (tmp_path / "100.csv").write_text("a,1.0\n")
    assert "give an .npz with `rewards`" in refusal(capsys, "filter", str(tmp_path / "100.csv"))
    (tmp_path / "hollow").mkdir()
    assert "hollow" in refusal(capsys, "filter", str(tmp_path / "hollow"))
    assert "hollow" in refusal(capsys, "mi", str(tmp_path / "hollow"))


def test_flipped_bytes_in_an_npz_are_an_error_not_a_crash(tmp_path, capsys) -> None:
    path = tmp_path / "c.npz"
    np.savez_compressed(path, rewards=REWARDS)
    data = bytearray(path.read_bytes())
    data[80:90] = b"\xff" * 10
    path.write_bytes(data)
    assert "c.npz" in refusal(capsys, "filter", str(path))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"lengths": np.ones((2, 1))}, "`log_likelihood`"),
        ({"log_likelihood": np.zeros((2, 1, 2))}, "`lengths`"),
        ({"log_likelihood": np.zeros((2, 1, 3)), "lengths": np.ones((2, 1))}, "(N, K, N)"),
        ({"log_likelihood": np.zeros((2, 2)), "lengths": np.ones(2)}, "(N, K, N)"),
        ({"log_likelihood": np.zeros((2, 1, 2)), "lengths": np.ones((1, 2))}, "`lengths` has shape (1, 2)"),
        ({"log_likelihood": np.zeros((2, 1, 2)), "lengths": np.ones((2, 1)), "prompt_id": np.ones(3)}, "prompt_id"),
    ],
)
def test_a_wrong_array_of_mi_is_named(tmp_path, capsys, arrays: dict[str, np.ndarray], says: str) -> None:
    assert says in refusal(capsys, "mi", save(tmp_path / "bad.npz", **arrays))


@pytest.mark.parametrize(("command", "required"), [("mi", "log_likelihood"), ("filter", "rewards")])
def test_a_single_array_is_named_with_how_to_save_it(capsys, tmp_path, command, required) -> None:
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, REWARDS)
    error = refusal(capsys, command, str(tmp_path / "one.npz"))
    assert f"one.npz is a single array; save it with np.savez(..., {required}=...)" in error


@pytest.mark.parametrize("wrong", [-1, 0.5])
def test_lengths_that_are_no_numbers_of_tokens_are_refused(capsys, tmp_path, wrong) -> None:
    matrix, lengths = mi_arrays()
    lengths = lengths.astype(float)
    lengths[0, 0] = wrong
    error = refusal(capsys, "mi", save(tmp_path / "m.npz", log_likelihood=matrix, lengths=lengths))
    assert "`lengths` must hold whole numbers of tokens" in error


def test_a_seed_that_is_no_whole_number_names_the_flag(capsys) -> None:
    for words in (["mi", "m.npz", "--seed", "-1"], ["tiny", "folder", "--seed", "1.5"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2 and "argument --seed: '" in capsys.readouterr().err


def test_filter_keeps_the_same_groups_of_smaller_rewards_or_says_which_setting_would(tmp_path, capsys) -> None:
    rewards = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [2, 0, 1, 0]]) / 2
    files = [save(tmp_path / f"{scale}.npz", rewards=rewards * scale) for scale in (1, 0.125)]
    whole, small = (output(capsys, "filter", file) for file in files)
    assert whole["kept"] == small["kept"] == [0, 1, 3] and whole["rejection"] == ""
    absolute = output(capsys, "filter", files[1], "--epsilon-unit", "absolute")
    assert absolute["kept"] == [] and "filter.epsilon_unit=relative" in absolute["rejection"]
    assert main(["filter", files[1], "--epsilon-unit", "absolute"]) == 0
    assert "filter.epsilon_unit=relative, would keep groups" in capsys.readouterr().out
    assert "share of the largest score" in refusal(capsys, "filter", files[0], "--epsilon", "2")


def test_filter_says_of_each_step_why_nothing_of_it_is_kept(tmp_path, capsys) -> None:
    rows = [row for step, spread in ((1, 1.0), (2, 0.1)) for row in archive_rows(step, 0, [0.0, spread])]
    part = tmp_path / "part.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=ARCHIVE_SCHEMA), part)
    assert main(["filter", str(part), "--epsilon-unit", "absolute"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].endswith("why nothing is kept") and "filter.epsilon_unit=relative" in lines[-1]
    assert main(["filter", str(part)]) == 0
    assert "why nothing is kept" not in capsys.readouterr().out


def test_mi_shows_no_recall_that_is_certain_and_says_why_a_small_p_may_stand_beside_zero(tmp_path, capsys) -> None:
    rng = np.random.default_rng(5)
    scores, lengths = rng.normal(size=(8, 4, 8)) - 20, np.full((8, 4), 5)
    scores[0, :, 0] += 6
    scores[1, :, 1] += 3  # two of eight prompts are named by their reasonings
    file = save(tmp_path / "m.npz", log_likelihood=scores, lengths=lengths)
    found = output(capsys, "mi", file)
    p_value, (low, high) = found["null"]["mi_est"]["p_value"], found["interval_95"]["mi_est"]
    assert p_value < 0.05 and low <= 0 <= high
    assert main(["mi", file]) == 0
    text = capsys.readouterr().out
    assert "recall@4" in text and "recall@8" not in text and "a small p beside an interval that holds 0" in text
    save(tmp_path / "m.npz", log_likelihood=scores + 9 * np.eye(8)[:, None, :], lengths=lengths)
    assert main(["mi", file]) == 0 and "a small p beside" not in capsys.readouterr().out
