"""Where a run looks for its cluster."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from squelch.actors.play.codec import ChatCodec
from squelch.cluster.config import dump, load
from squelch.cluster.fleet import bootstrap
from squelch.cluster.fleet.bootstrap import check_address, check_fixed_scorer
from squelch.kit.base.errors import UserError
from squelch.kit.text.shipped_templates import with_stamp
from squelch.kit.text.stamp import Stamp
from squelch.learner.refusal import SettingRefused
from tests.actors.formats.test_own import SHOWS_TOOLS
from tests.actors.play.test_codec import byte_level_bpe, save_model
from tests.envs.adapters.test_gymnasium_text import LAMP
from tests.envs.prompt_file.test_environment import options


@pytest.mark.parametrize(
    ("address", "probed"),
    [
        ("head.example:6379", [("head.example", 6379)]),
        ("[::1]:6379", [("::1", 6379)]),
        ("ray://127.0.0.1:10001", []),
        ("auto", []),
        ("", []),
    ],
)
def test_what_is_probed_is_a_host_and_a_port(monkeypatch, address, probed) -> None:
    asked: list[tuple[str, int]] = []

    def listening(place: tuple[str, int], timeout: float) -> nullcontext[SimpleNamespace]:
        asked.append(place)
        return nullcontext(SimpleNamespace(sendall=lambda _: None, recv=lambda _: bootstrap._SETTINGS_FRAME))

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("socket.create_connection", listening)
    check_address(load("frozenlake"))
    assert asked == probed


def test_an_address_where_nothing_listens_is_said_with_where_it_came_from(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^RAY_ADDRESS='{address}': .* unset the variable to start one"):
        check_address(load("frozenlake"))
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    with pytest.raises(UserError, match=f"^cluster.address='{address}': .* leave the key empty to start one"):
        check_address(load("frozenlake", [f"cluster.address={address}"]))


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """A server that gives everyone one answer and hangs up, or with None none at all; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                if answer is None:
                    ended.wait(180)
                else:
                    connection.sendall(answer)

        ended, thread = threading.Event(), threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join(180)


def test_whatever_else_listens_there_is_no_ray_head(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    for answer, within_s, says in ((refusal, 60.0, "no Ray head; .*`squelch submit`"), (None, 0.3, "timed out")):
        monkeypatch.setattr(bootstrap, "PROBE_TIMEOUT_S", within_s)
        with server(answer) as address, pytest.raises(UserError, match=rf"^cluster\.address='{address}': .*{says}"):
            check_address(load("frozenlake", [f"cluster.address={address}"]))


def test_a_head_answers_as_every_server_of_grpc_does() -> None:
    head = grpc.server(ThreadPoolExecutor(1))
    port = head.add_insecure_port("127.0.0.1:0")
    head.start()
    try:
        check_address(load("frozenlake", [f"cluster.address=127.0.0.1:{port}"]))
    finally:
        head.stop(None)


def test_the_first_prompt_is_measured_in_the_words_that_the_run_uses(tmp_path) -> None:
    codec = ChatCodec(save_model(tmp_path / "model", byte_level_bpe()))
    tiny, natural = (load("frozenlake", [f"environment.prompt={prompt}"]) for prompt in ("tiny", "natural"))
    lengths = [bootstrap._opening(one.mixture.entries[0], one, codec) for one in (natural, tiny)]
    assert lengths[0] > 2 * lengths[1]


def test_the_longest_prompt_is_measured_with_its_own_tools(tmp_path) -> None:
    codec = ChatCodec(save_model(tmp_path / "model", byte_level_bpe(), SHOWS_TOOLS))
    tool = {"type": "function", "function": {"name": "adds", "description": "two numbers " * 9, "parameters": {}}}
    given = options(tmp_path, "right")
    path = Path(given["data"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**row, "tools": [tool, tool] if number == 7 else None} for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"environment.options={json.dumps(given)}", "environment.name=Prompts", "model.path=x"]
    config = load("frozenlake", words)
    found = bootstrap._opening(config.mixture.entries[0], config, codec, asked=[])
    assert found == len(codec.render(rows[7]["prompt"], [tool, tool])) > 2 * len(codec.render(rows[11]["prompt"]))
    hidden = ChatCodec(save_model(tmp_path / "hides", byte_level_bpe()))
    found = bootstrap._opening(config.mixture.entries[0], config, hidden, asked=[])
    assert found == len(hidden.render(rows[7]["prompt"], [tool, tool]))


CHANGES = ("scorer.share=0.2", "scorer.max_pairs=70", "scorer.probe.links=false", "scorer.probe.every=10")


def test_an_agents_first_prompt_is_not_known_and_its_turns_must_be_of_the_models_format(tmp_path) -> None:
    codec = ChatCodec(save_model(tmp_path / "model", byte_level_bpe(), SHOWS_TOOLS))
    for turns in ("model", "squelch"):
        given = ["environment.name=Agent", f"environment.options={{command: [cat], turns: {turns}}}"]
        config = load("prompts", given)
        (entry,) = config.mixture.entries
        assert bootstrap._opening(entry, config, codec, asked=[]) == 0
    other = SimpleNamespace(name="qwen3", keeps_reasoning=True)
    with pytest.raises(ValueError, match="Agent has the turn format of Squelch, which the format qwen3 cannot write"):
        bootstrap._opening(entry, config, other)


@pytest.mark.parametrize(
    ("shown", "tower", "counted"),
    [
        ("picture", True, (True, False)),
        ("both", True, (True, True)),
        ("grid", True, (False, False)),
        ("picture", False, (False, False)),
    ],
)
def test_mi_by_modality_is_counted_where_the_model_is_shown_pictures(
    monkeypatch, tiny_policy, shown, tower, counted
) -> None:
    monkeypatch.setattr(bootstrap, "vision_of", lambda _: object() if tower else None)
    monkeypatch.setattr(bootstrap, "_opening", lambda *_: 100)
    picture = ["environment.options.cell_pixels=8"] if shown in ("picture", "both") else []
    config = load("frozenlake", [f"environment.options.observation_format={shown}", *picture])
    work = bootstrap._step_work(config, tiny_policy)
    assert (work.pictures, work.texts_differ) == counted
    assert config.pictures_alone == (shown == "picture")


def test_a_run_is_scored_as_its_share_allows_and_a_resumed_run_as_it_was_started(tiny_policy, tmp_path) -> None:
    said: list[str] = []
    words = [f"runs_dir={tmp_path}", "name=run"]
    tiny, counted = load("frozenlake", words), load("frozenlake", [*words, f"model.path={tiny_policy}"])
    first = bootstrap.choose_scoring(counted, tiny_policy, False, said.append)
    assert bootstrap.choose_scoring(tiny, tiny_policy, False, said.append).scorer.every == 5 and len(said) == 1
    assert first.scorer.every is not None and f"scoring every {first.scorer.every} steps" in said[0]
    (tmp_path / "run").mkdir()
    linked = counted.scorer.probe.model_copy(update={"links": True})
    found = {"every": 17, "max_pairs": 99, "probe": linked}
    kept = counted.model_copy(update={"scorer": counted.scorer.model_copy(update=found)})
    (tmp_path / "run/config.yaml").write_text(dump(kept))
    resumed = bootstrap.choose_scoring(counted, tiny_policy, True, said.append)
    assert (resumed.scorer.every, resumed.scorer.max_pairs) == (17, 99) and len(said) == 1
    changed = load("frozenlake", [*words, f"model.path={tiny_policy}", *CHANGES])
    again = bootstrap.choose_scoring(changed, tiny_policy, True, said.append).scorer
    assert (again.every, again.max_pairs, again.probe.links, again.probe.every) == (17, 99, True, 10)
    assert "not used: scorer.max_pairs=70, scorer.share=0.2, scorer.probe.links=False; scorer.share chose" in said[-1]
    said.pop()
    (tmp_path / "run/config.yaml").write_text(dump(counted))  # as a sweep writes it before the run's first start
    assert bootstrap.choose_scoring(counted, tiny_policy, True, said.append).scorer.every == first.scorer.every
    assert bootstrap.weight_bytes(tiny_policy, counted) > 4 * 500_000


def test_a_run_of_few_prompts_warns_that_the_alarm_on_scorer_steps_is_not_armed(tiny_policy, tmp_path) -> None:
    for words, reported in ([("loop.prompts=4",), 1], [("scorer.max_prompts=5",), 1], [("loop.prompts=6",), 0]):
        said: list[str] = []
        bootstrap.choose_scoring(load("frozenlake", [f"runs_dir={tmp_path}", *words]), tiny_policy, False, said.append)
        assert sum("its alarm needs 6" in line for line in said) == reported
        assert not reported or "on the fixed probe watches" in said[0]
    said = []
    words = [f"runs_dir={tmp_path}", "loop.prompts=4", "scorer.probe.every=0"]
    bootstrap.choose_scoring(load("frozenlake", words), tiny_policy, False, said.append)
    assert said[0].endswith("none watches, as the fixed probe is off")


def test_a_probe_of_few_tasks_warns_that_no_metric_can_be_significant(tiny_policy, tmp_path) -> None:
    few, off = ("scorer.probe.tasks=3",), ("scorer.probe.tasks=3", "scorer.probe.every=0")
    for words, reported in ((few, 1), (off, 0), (("validation.tasks=1",), 1), ((), 0)):
        said: list[str] = []
        bootstrap.choose_scoring(load("frozenlake", [f"runs_dir={tmp_path}", *words]), tiny_policy, False, said.append)
        assert sum("no metric can be significant" in line for line in said) == reported


def test_a_fixed_scorer_that_is_not_there_is_the_users_to_mend_before_anything_starts(tmp_path: Path) -> None:
    config = load("frozenlake", [f"scorer.model={tmp_path / 'absent'}"])
    with pytest.raises(UserError, match=r"scorer\.model=.*absent: no config\.json there"):
        check_fixed_scorer(config, tmp_path)
    check_fixed_scorer(load("frozenlake", ["scorer.model=absent", "scorer.enabled=false"]), tmp_path)


def test_hard_negatives_of_an_environment_without_twins_are_announced_and_for_pictures_refused(tiny_policy) -> None:
    said: list[str] = []
    bootstrap.choose_scoring(load("metamathqa", ["scorer.probe.hard=true"]), tiny_policy, False, said.append)
    assert sum("the nearest of 1,000 others stand in" in line for line in said) == 1
    shown = ["environment.name=Gymnasium", f"environment.options={json.dumps(LAMP)}"]
    asked = load("frozenlake", [*shown, "scorer.probe.hard=true"])
    with pytest.raises(UserError, match=r"^scorer\.probe\.hard=true: Gymnasium shows pictures .*; leave it unset$"):
        bootstrap.check_scoring(asked)
    assert bootstrap.choose_scoring(load("frozenlake", shown), tiny_policy, False, said.append).scorer.every


@pytest.mark.parametrize("address", ["foo", "127.0.0.1:", "127.0.0.1:port"])
def test_an_address_of_another_form_is_refused_before_anything_is_warmed_up(monkeypatch, address: str) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=f"^cluster.address='{address}': give HOST:PORT, or auto"):
        check_address(load("frozenlake", [f"cluster.address='{address}'"]))


@pytest.mark.parametrize(
    ("prompt", "vocabulary", "reported"), [("tiny", 32_000, True), ("tiny", 4_096, False), ("natural", 32_000, False)]
)
def test_a_pretrained_model_under_the_tiny_policys_language_is_warned_of(
    monkeypatch, tmp_path, prompt: str, vocabulary: int, reported: bool
) -> None:
    monkeypatch.setattr("squelch.kit.models.model_folder.check_model_folder", lambda folder: None)
    monkeypatch.setattr(bootstrap, "_check_memory", lambda folder, config: "enough memory")
    save_model(tmp_path, byte_level_bpe())
    shape = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": vocabulary}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    (tmp_path / "model.safetensors").touch()
    said: list[str] = []
    long = ["rollout.max_model_len=16000", "learner.token_budget=16000"]
    bootstrap.check_model(tmp_path, load("frozenlake", [f"environment.prompt={prompt}", *long]), said.append)
    assert ("set environment.prompt=natural" in " ".join(said)) == reported
    said.clear()
    bootstrap.check_model(tmp_path, load("prompts", [f"environment.prompt={prompt}", *long]), said.append)
    assert not any("prompt=natural" in line for line in said), "a file's prompts have no style"


def test_where_prompts_ask_for_an_answer_of_a_form_its_setting_is_proposed_by_name(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("squelch.kit.models.model_folder.check_model_folder", lambda folder: None)
    monkeypatch.setattr(bootstrap, "_check_memory", lambda folder, config: "enough memory")
    model, tasks = tmp_path / "model", tmp_path / "tasks.jsonl"
    save_model(model, byte_level_bpe())
    shape = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 32_000}
    (model / "config.json").write_text(json.dumps(shape))
    (model / "model.safetensors").touch()
    rows = [{"prompt": rf"{k} + 1? End with \boxed{{}}.", "wanted": ""} for k in range(9)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    long = ["rollout.max_model_len=16000", "learner.token_budget=16000"]
    config = load("prompts", [f"environment.options.data={tasks}", *long])
    divided = with_stamp(model, Stamp(reasoning="before_answer", answer="####"), tmp_path / "cache")
    for folder, proposed in ((model, 1), (divided, 0)):
        said: list[str] = []
        bootstrap.check_model(folder, config, said.append)
        assert sum(r"""and "model.answer='\boxed{'" take""" in line for line in said) == proposed


def test_a_tiny_policy_that_does_not_learn_to_see_is_the_users_to_change(monkeypatch, tmp_path) -> None:
    def blind(*_: object) -> None:
        raise SettingRefused("it does not read its pictures; set another model.tiny_seed")

    monkeypatch.setattr("squelch.learner.warmup.tiny.build_tiny", blind)
    config = load("frozenlake-pictures", [f"model.cache={tmp_path}"])
    with pytest.raises(UserError, match=r"set another model\.tiny_seed"):
        bootstrap.build_tiny_policy(config, lambda _: None)
