"""What `squelch plan` estimates, measures, advises and refuses."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from squelch.actors.config import RolloutConfig, ScorerConfig
from squelch.actors.model_counts import model_size
from squelch.actors.rollout import memory as rollout_memory
from squelch.actors.scorer import memory as scorer_memory
from squelch.actors.weight_ways import WAYS
from squelch.cluster.cli import main
from squelch.cluster.commands.plan_memory import needs_of
from squelch.cluster.config import dump, load
from squelch.cluster.fleet.demand import needed
from squelch.cluster.runs.timing.counted_step import DEVICES, PRODUCTS, counted, device_of
from squelch.learner import memory as learner_memory
from squelch.learner.model_shapes import published

SIZE = model_size(learner_memory.skeleton(published("Qwen2.5-0.5B")))
GIB = 2**30


def lines(steps: int, window: float) -> str:
    metrics = {"seconds/step": window + 3.0, "seconds/rollout": window, "seconds/train": 2.0, "seconds/publish": 0.5}
    every = {"time": 0.0, "tokens/sampled": 1000.0, "up/rollout-0": 1.0, **metrics}
    return "".join(json.dumps({"step": step, **every}) + "\n" for step in range(1, steps + 1))


def run_folder(tmp_path: Path, name: str, steps: int = 6, window: float = 8.0, overrides: tuple[str, ...] = ()) -> str:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(load("frozenlake", [f"runs_dir={tmp_path}", f"name={name}", *overrides])))
    (folder / "metrics.jsonl").write_text(lines(steps, window))
    return str(folder)


def test_a_run_gives_the_time_of_a_step_and_the_number_of_workers(tmp_path: Path, capsys) -> None:
    assert main(["plan", "frozenlake", "--run", run_folder(tmp_path, "one"), "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert step["origin"].startswith("measured in 5 steps of ") and step["model"]["train"] == 2.0
    assert {row["workers"]: row["step_s"] for row in step["rows"]}[1] == pytest.approx(11.0)
    assert step["enough"] == 8, "nothing says that a part of the window cannot be divided"

    assert main(["plan", "frozenlake", "loop.max_staleness=1", "--run", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert "predicted at max_staleness 1" in said and "Set rollout.count=" in said and "less than 4 GiB" in said


def test_a_larger_step_than_the_runs_is_scaled_and_says_so(tmp_path: Path, capsys) -> None:
    assert main(["plan", "frozenlake", "loop.prompts=16", "--run", run_folder(tmp_path, "one"), "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert step["model"]["parallel"] == 16.0 and step["model"]["train"] == 4.0
    assert step["origin"].endswith("scaled to 16 prompts x 16")


@pytest.mark.parametrize(
    ("steps", "overrides", "says"),
    [
        (3, (), "2 of 3 steps are usable; at least 4 are needed; let it run for more steps"),
        (6, ("loop.max_staleness=1",), "ran at loop.max_staleness=1"),
    ],
)
def test_a_run_that_tells_no_times_is_named(
    tmp_path: Path, capsys, steps: int, overrides: tuple[str, ...], says: str
) -> None:
    folder = run_folder(tmp_path, "one", steps, overrides=overrides)
    assert main(["plan", "frozenlake", "--run", folder]) == 2
    said = capsys.readouterr().err
    assert folder in said and says in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["qwen2.5-0.5x"], "qwen2.5-0.5b"),
        (["qwen2.5-0.5b", "model.path=/nowhere"], "model.path=/nowhere: give a local Hugging Face folder"),
        (["frozenlake", "--run", "/nowhere"], "/nowhere holds no run"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2_and_says_what_would_be_right(
    arguments: list[str], says: str, capsys
) -> None:
    assert main(["plan", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_revision_of_the_hub_is_planned_as_its_model(capsys) -> None:
    found = []
    for path in ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B@main"):
        assert main(["plan", "qwen2.5-0.5b", f"model.path={path}", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["memory"])
    assert found[0] == found[1]


def test_a_recipe_on_gpus_is_planned_for_every_device_from_its_shapes_alone(capsys) -> None:
    assert main(["plan", "qwen2.5-0.5b", "--json", "cluster.object_store_mib=256"]) == 0
    found = json.loads(capsys.readouterr().out)
    roles = [(need["role"], need["device_gib"]) for need in found["memory"]]
    wanted = [(role, gib) for role in ("learner rank", "rollout worker", "scorer") for gib in (24, 48, 80, 141)]
    assert roles == wanted and found["step"]["origin"].startswith("estimated: counted operations")
    assert "cluster.object_store_mib=" in found["object_store"]
    assert main(["plan", "qwen2.5-0.5b", "--device-gib", "24", "learner.token_budget=200000"]) == 0
    assert "24 GiB       set learner." in capsys.readouterr().out


def test_a_recipe_on_cpus_is_planned_for_a_device_that_is_named(capsys) -> None:
    assert main(["plan", "smollm2-frozenlake", "--device-gib", "24", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["memory"]
    assert [need["device_gib"] for need in found] == [24, 24, 24]
    assert main(["plan", "smollm2-frozenlake", "--device-gib", "24"]) == 0
    assert "planned as with learner.num_gpus=1 rollout.num_gpus=1 scorer.num_gpus=1" in capsys.readouterr().out
    assert main(["plan", "smollm2-frozenlake", "--json"]) == 0
    assert all(need["device_gib"] is None for need in json.loads(capsys.readouterr().out)["memory"])


def test_the_advice_for_a_learner_is_a_configuration() -> None:
    """Found by a reviewer: a token budget was advised that is below the longest trajectory."""
    given = ["rollout.max_model_len=3072", "learner.token_budget=8192"]
    recipe = load("frozenlake", given)
    shape, longest = published("Qwen2.5-0.5B"), recipe.rollout.max_model_len
    reported = learner_memory.advice(shape, recipe.learner, 1, 0, 10 * GIB, longest)
    assert "learner.token_budget=3072" in reported
    load("frozenlake", [*given, *reported.removeprefix("set ").split()])
    assert "token_budget" not in learner_memory.advice(shape, recipe.learner, 1, 0, 10 * GIB)


def test_an_engine_that_lacks_memory_names_the_settings_that_make_a_sequence_fit() -> None:
    rollout = RolloutConfig(num_gpus=1, max_model_len=4096)
    assert rollout_memory.advice(SIZE, rollout, 24 * GIB) == ""
    assert rollout_memory.advice(SIZE, rollout, 5 * GIB).startswith("set rollout.dtype=bfloat16")
    assert rollout_memory.advice(SIZE, rollout, GIB) == "take a smaller model, or larger devices"
    needed = rollout_memory.estimate(SIZE, rollout)
    assert needed.weights == 4 * SIZE.parameters and needed.sequence == 4096 * 2 * 24 * 2 * 64 * 4
    halved = rollout_memory.estimate(SIZE, rollout.model_copy(update={"tensor_parallel_size": 2}))
    assert halved.weights == needed.weights // 2 and halved.sequence == needed.sequence // 2


def test_a_cache_of_a_given_size_limits_what_a_gpu_holds_at_once() -> None:
    shared = RolloutConfig(num_gpus=0.5, max_model_len=4096)
    needed = rollout_memory.estimate(SIZE, shared)
    given = shared.model_copy(update={"kv_cache_gib": 1.0})
    assert needed.sequences(80 * GIB, given) == GIB // needed.sequence < needed.sequences(80 * GIB, shared)
    beyond = shared.model_copy(update={"kv_cache_gib": 1000.0})
    assert needed.sequences(80 * GIB, beyond) == 0 < needed.sequences(80 * GIB, shared)


@pytest.mark.parametrize(
    ("gib", "settings", "reported"),
    [
        ("80", ["rollout.kv_cache_gib=0.1"], r"\d of 128 full sequences; (rollout\.kv_cache_gib=\S+) holds all"),
        ("80", ["rollout.kv_cache_gib=1000"], r" 0 of 128 full sequences; (rollout\.kv_cache_gib=\S+) holds all"),
        ("8", ["rollout.kv_cache_gib=0.1"], r"\d of 128 full sequences; (rollout\.kv_cache_gib=\S+) holds [1-9]\d\n"),
        ("8", ["rollout.kv_cache_gib=0.01"], r" 0 of 128 full sequences; (rollout\.kv_cache_gib=\S+) holds [1-9]\d\n"),
    ],
)
def test_a_cache_that_is_too_small_or_too_large_is_reported_with_a_size_that_fits(
    gib: str, settings: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "qwen2.5-0.5b", "--device-gib", gib]
    assert main([*asked, *settings]) == 0
    advised = re.search(reported, capsys.readouterr().out)
    assert advised
    assert main([*asked, advised[1]]) == 0
    said = capsys.readouterr().out
    assert ("full sequences" in said) == ("full sequences fit at once" in said) == (gib == "8")


def test_the_scorers_advice_fits() -> None:
    scorer = ScorerConfig(num_gpus=1)
    whole = scorer_memory.estimate(SIZE, scorer)
    assert scorer_memory.advice(SIZE, scorer, whole) == ""
    assert scorer_memory.advice(SIZE, scorer, whole - 1) == "set scorer.dtype=bfloat16"
    assert scorer_memory.advice(SIZE, scorer, GIB).startswith("set scorer.enabled=false")


def test_actors_that_share_a_gpu_are_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    shares = ["learner.num_gpus=0.4", "rollout.num_gpus=0.3"]
    assert main(["plan", "qwen2.5-0.5b", "--device-gib", "80", *shares, "scorer.num_gpus=0.2"]) == 0
    said = capsys.readouterr().out
    assert "GPUs: 1 x 0.4 for the learner + 1 x 0.3 for the rollout worker + 1 x 0.2 for the scorer = 0.9\n" in said
    assert said.count("24 GiB") == 1 and "32 GiB" in said and "16 GiB" in said
    assert main(["plan", "qwen2.5-0.5b", "--device-gib", "80"]) == 0
    assert "GPUs:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gib", "more", "fits"),
    [
        (24, [], False),
        (48, [], True),
        (80, ["learner.activation_checkpointing=false"], True),
        (141, ["learner.activation_checkpointing=false"], True),
    ],
)
def test_one_gpu_holds_learner_two_engines_and_scorer(gib: int, more: list[str], fits: bool, capsys) -> None:
    assert main(["plan", "one-card", "--device-gib", str(gib), *more]) == 0
    said = capsys.readouterr().out
    shares = "1 x 0.5 for the learner + 2 x 0.15 for the rollout worker + 1 x 0.2 for the scorer = 1\n"
    assert shares in said and (said.count(" fits\n") == 3) == fits


def test_counted_times_are_near_the_one_run_on_a_gpu() -> None:
    """SmolLM2-135M on an H100 (docs/research/results.md): rollouts 0.46 s, publication 0.70 s."""
    shares = ["learner.num_gpus=0.3", "rollout.num_gpus=0.3", "loop.prompts=8"]
    own = ["rollout.dtype=bfloat16", "learner.dtype=bfloat16", "rollout.weight_transfer=object_store"]
    config = load("smollm2-countdown", [*shares, *own])
    model = counted(model_size(learner_memory.skeleton(published("SmolLM2-135M"))), config, DEVICES[80])
    assert model.serial + model.parallel == pytest.approx(0.46, rel=0.2)
    assert model.publish == pytest.approx(0.70, rel=0.3)


def test_counted_times_follow_the_work_and_the_device() -> None:
    config = load("qwen2.5-0.5b", [])
    slow, fast = (counted(SIZE, config, DEVICES[gib]) for gib in (24, 141))
    twice = counted(SIZE, load("qwen2.5-0.5b", ["loop.prompts=16"]), DEVICES[24])
    assert slow.serial > fast.serial and slow.train > fast.train and slow.publish == fast.publish
    assert twice.serial == slow.serial and twice.parallel == pytest.approx(2 * slow.parallel)
    assert twice.train == pytest.approx(2 * slow.train)
    single = counted(SIZE, load("qwen2.5-0.5b", ["learner.dtype=float32"]), DEVICES[80])
    half = counted(SIZE, load("qwen2.5-0.5b", ["learner.dtype=bfloat16"]), DEVICES[80])
    assert single.train > 10 * half.train and single.parallel == half.parallel
    assert [device_of(gib).name for gib in (16, 40, 90, 192)] == ["A10", "A10", "H100 SXM", "H200"]


def test_the_counted_tokens_of_several_turns_are_full_contexts_of_every_trajectory() -> None:
    """Found by a reviewer: what later turns feed was counted once a group, as if a group shared it."""
    config = load("smollm2-frozenlake", [])
    single = load("smollm2-frozenlake", ["environment.format.max_turns=1"])
    one, more = (counted(SIZE, each, DEVICES[80]) for each in (single, config))
    longest = config.rollout.max_model_len
    rate = PRODUCTS * DEVICES[80].peak(config.learner.dtype) * config.learner.ranks
    whole = config.loop.prompts * config.sampling.group_size * longest
    passes = 4 if config.learner.activation_checkpointing else 3
    assert more.train == pytest.approx(passes * whole * SIZE.operations(longest / 2) / rate) and one.train < more.train


ONE_NODE = (Path(__file__).parents[3] / "docs/guide/real-models.md").read_text().partition("## On one GPU")[2]
ON_ONE = re.findall(r"^\| `([\w.-]+)` \| (\d+) \| `([^`]+)` \|$", ONE_NODE, re.MULTILINE)
ON_SEVERAL = re.findall(r"^\| (\d+) \| `([^`]+)` \| (NCCL|shared memory) \|$", ONE_NODE, re.MULTILINE)


@pytest.mark.parametrize(("recipe", "gib", "settings"), ON_ONE)
def test_what_the_page_puts_on_one_gpu_fits(recipe: str, gib: str, settings: str) -> None:
    config = load(recipe, settings.split())
    assert {need.advice for need in needs_of(config, [float(gib)])} == {""}
    assert needed(config, "GPU") <= 1


@pytest.mark.parametrize(("count", "settings", "way"), ON_SEVERAL)
def test_the_pages_layouts_of_a_node_use_it(count: str, settings: str, way: str) -> None:
    config = load("qwen2.5-0.5b", settings.split())
    assert needed(config, "GPU") == pytest.approx(int(count))
    assert config.way.name == {"NCCL": "nccl", "shared memory": "shared_memory"}[way]
    assert {need.advice for need in needs_of(config, [24.0])} == {""}


def test_the_page_has_both_tables() -> None:
    assert len(ON_ONE) == 8 and len(ON_SEVERAL) == 4


def test_a_critic_and_a_reference_take_time_and_the_host_is_planned(capsys) -> None:
    changes = ([], ["learner.objective.kl.coefficient=0.01"], ["learner.algorithm=ppo"])
    base = ["learner.activation_checkpointing=false"]
    plain, with_reference, with_critic = (
        counted(SIZE, load("qwen2.5-0.5b", [*base, *change]), device_of(80.0)).train for change in changes
    )
    assert with_reference / plain == pytest.approx(4 / 3) and with_critic / plain == pytest.approx(7 / 3)
    assert main(["plan", "qwen2.5-7b", "--device-gib", "80"]) == 0
    assert "4 x learner rank, beside its GPU: 25.84 GiB of host memory" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["prompts-7b", "maths-7b", "code-7b"])
def test_the_recipes_of_a_node_have_the_split_that_the_plan_proposes(recipe: str, capsys) -> None:
    assert main(["plan", recipe, "--gpus", "8", "--device-gib", "80", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, config = found["splits"][0], load(recipe)
    assert best["advice"] == [] and needed(config, "GPU") <= 8
    for setting in best["settings"].split():
        key, _, value = setting.partition("=")
        part, name = key.split(".")
        assert getattr(getattr(config, part), name) == pytest.approx(float(value)), setting
    assert {need["device_gib"] for need in found["memory"]} == {80.0, 56.0, 24.0}


def test_the_plan_says_what_bounds_the_step_of_the_best_split(capsys) -> None:
    assert main(["plan", "prompts-7b", "--gpus", "8", "--device-gib", "80"]) == 0
    said = capsys.readouterr().out
    (bound,) = re.findall(
        r"^  (generation|training|new weights) bounds the step: (\S+) of (\S+) s; ", said, re.MULTILINE
    )
    assert 0 < float(bound[1]) < float(bound[2])
    steps = [float(one) for one in re.findall(r"^  +([\d.]+)  .*learner\.ranks=", said, re.MULTILINE)]
    assert len(steps) > 2 and steps[0] <= 1.05 * min(steps)
    assert (
        f"5 ranks would take {min(steps)} s, too little less to be sure of; 4 ranks divide the weights evenly" in said
    )


def ranks_of(settings: str, gpus: int, *more: str) -> tuple[dict[int, str], str]:
    """What the plan proposes by number of learner ranks, and all that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["plan", "prompts-7b", *settings.split(), "--gpus", str(gpus), *more]) == 0
    rows = re.findall(r"^ +[\d.]+  .*  (learner\.ranks=(\d+) .*)$", said.getvalue(), re.MULTILINE)
    return {int(ranks): text for text, ranks in rows}, said.getvalue()


@pytest.mark.parametrize(("size", "ranks"), [(2, {5, 3, 1}), (4, {3})])
def test_engines_of_several_gpus_leave_none_idle(size: int, ranks: set[int]) -> None:
    found, said = ranks_of(f"rollout.tensor_parallel_size={size} rollout.num_gpus={size}", 8)
    assert set(found) == ranks and "idle" not in said.partition("memory of")[0]


def test_gpus_that_stay_idle_are_counted_in_one_line_with_the_reason() -> None:
    found, said = ranks_of("rollout.tensor_parallel_size=2 rollout.num_gpus=2 learner.ranks=4", 8)
    assert found[4].endswith("; 1 idle")
    assert (
        "1 of 8 GPUs stays idle beside 4 learner ranks, 1 rollout worker of 2 and the scorer: one more worker takes 2\n"
        in said
    )
    said = ranks_of("learner.ranks=2 rollout.count=1", 8)[1]
    assert "5 of 8 GPUs stay idle" in said and "the settings that you give use no more" in said


def test_every_number_of_ranks_is_proposed() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["plan", "prompts-7b", "--gpus", "8", "--json"]) == 0
    splits = json.loads(said.getvalue())["splits"]
    assert {split["settings"].split()[0] for split in splits} == {f"learner.ranks={n}" for n in range(1, 8)}
    assert {split["gpus"] for split in splits} == {8}


def test_where_an_engine_leaves_nothing_for_a_learner_its_size_is_named(capsys) -> None:
    assert main(["plan", "prompts-7b", "rollout.tensor_parallel_size=8", "rollout.num_gpus=8", "--gpus", "8"]) == 2
    said = capsys.readouterr().err
    assert "takes 8 of 8 GPUs" in said and "set rollout.tensor_parallel_size=4" in said


def test_a_recipe_whose_engines_are_larger_than_they_need_be_is_told_so(tmp_path: Path) -> None:
    recipe = tmp_path / "wide.yaml"
    recipe.write_text("extends: prompts-7b\nrollout: {tensor_parallel_size: 2, num_gpus: 2}\n")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["plan", str(recipe), "--gpus", "8"]) == 0
    assert re.search(r"fits one GPU: [\d.]+ s with rollout\.tensor_parallel_size=1 learner\.ranks=4", said.getvalue())


def test_a_recipe_on_cpus_with_engines_of_several_gpus_is_planned(tmp_path: Path, capsys) -> None:
    """As an import writes it where the number of GPUs is unknown."""
    recipe = tmp_path / "wide.yaml"
    without = "learner: {num_gpus: 0}\nscorer: {num_gpus: 0}\n"
    recipe.write_text(f"extends: prompts-7b\nrollout: {{tensor_parallel_size: 2, num_gpus: 0}}\n{without}")
    assert main(["plan", str(recipe), "--device-gib", "80"]) == 0
    assert "planned as with learner.num_gpus=1 rollout.num_gpus=2 scorer.num_gpus=1" in capsys.readouterr().out


def test_a_recipe_whose_files_are_not_there_yet_is_planned(capsys) -> None:
    assert main(["plan", "prompts-7b", "environment.options.data=/nowhere/a.parquet", "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith("planned without the environment, which cannot be made yet: ") and "/nowhere/a.parquet" in said
    )


def test_a_users_own_settings_stay_and_a_recipe_on_cpus_is_split_too(capsys) -> None:
    assert main(["plan", "prompts-7b", "--gpus", "8", "learner.ranks=2", "--json"]) == 0
    assert {split["settings"].split()[0] for split in json.loads(capsys.readouterr().out)["splits"]} == {
        "learner.ranks=2"
    }
    assert main(["plan", "prompts", "--gpus", "1", "--device-gib", "24", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["splits"][0]
    assert best["settings"].startswith("learner.ranks=1 rollout.count=1 learner.num_gpus=0.")
    assert best["advice"] == ["scorer: set scorer.dtype=bfloat16"], "float32 does not fit its fifth of the GPU"
    assert main(["plan", "frozenlake", "--gpus", "8", "--run", "runs/x"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_adapters_on_the_host_fit_one_gpu_of_24_gib() -> None:
    config = load("prompts-1.5b")
    assert needed(config, "GPU") <= 1 and {need.advice for need in needs_of(config, [24.0])} == {""}


def test_new_weights_take_the_time_of_their_way() -> None:
    shares = ["learner.ranks=1", "learner.num_gpus=0.5", "rollout.num_gpus=0.5", "scorer.enabled=false"]
    ways = {"nccl": [], "shared_memory": ["rollout.num_gpus=0.7"], "ipc": shares}
    for way, settings in ways.items():
        config = load("qwen2.5-7b", settings)
        found = counted(SIZE, config, DEVICES[80]).publish
        assert config.way.name == way and found == pytest.approx(SIZE.parameters * 2 / WAYS[way].bytes_per_s)
    rates = [WAYS[way].bytes_per_s for way in ("object_store", "shared_memory", "ipc")]
    assert rates == sorted(set(rates))


def test_a_shape_from_a_config_json_is_planned_without_the_model(tmp_path: Path, capsys) -> None:
    shape = published("Qwen2.5-1.5B")
    shape.architectures = ["Qwen2ForCausalLM"]
    shape.save_pretrained(tmp_path)
    found = []
    for more in ([], ["model.path=someone/else", "--shape", str(tmp_path / "config.json")]):
        assert main(["plan", "qwen2.5-1.5b", "--device-gib", "80", "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["memory"])
    assert found[0] == found[1]
    assert main(["plan", "qwen2.5-1.5b", "--shape", str(tmp_path / "absent.json")]) == 2
    assert "--shape" in capsys.readouterr().err
