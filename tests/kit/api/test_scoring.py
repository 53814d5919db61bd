"""`squelch.score` gives what the command gives for the same samples, as text, messages or ids, and names bad input."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

import squelch
from squelch.cluster.cli import main
from squelch.kit.api.completions import EMPTY, NO_ANSWER, NO_TOKENS, TEXT_BEFORE, UNCLOSED, UNMARKED, split_ids
from squelch.kit.api.inputs import complete, reader_of
from squelch.kit.scoring.cross_scoring import CrossScorer
from tests.kit.text.made import chatml_bpe, metaspace


def fed(prompts: list[str]) -> list[str]:
    return [f"<|user|>{prompt}<|end|><|assistant|>" for prompt in prompts]


def test_a_live_model_and_the_command_give_the_same(tmp_path, tiny_policy, model, tokenizer, texts, capsys) -> None:
    prompts, said = fed(texts[0]), texts[1]
    rows = [{"prompt": x, "completion": c} for x, c in zip(prompts, said, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["score", str(tmp_path / "rows.jsonl"), "--model", str(tiny_policy), "--json"]) == 0
    command = json.loads(capsys.readouterr().out)
    found = squelch.score(model, tokenizer, prompts, said)
    assert found.proxies.mi_est == pytest.approx(command["mi_est"], abs=1e-6) and found.regime == command["regime"]
    assert found.answers is not None and found.answers.links is not None
    assert found.answers.links.metrics()["dependence"] == pytest.approx(command["links"]["dependence"], abs=1e-5)
    low, high = command["interval_95"]["mi_seq_est"]
    interval = found.uncertainty.intervals["mi_seq_est"]
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-5)
    assert [t.text for t in found.templates[:5]] == [t["text"] for t in command["templates"]]
    assert found.matrix.shape == (21, 7) and found.metrics()["mi_est"] == found.proxies.mi_est
    assert found.matrix == pytest.approx(squelch.score(model, tokenizer, prompts, said).matrix, abs=0)


def test_text_messages_and_ids_in_arrays_and_tensors_give_the_same(model, tokenizer, texts) -> None:
    prompts, said = texts
    x = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in fed(prompts)]
    ids = [[*tokenizer.encode(c, add_special_tokens=False), tokenizer.eos_token_id] for c in said]
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    split = [split_ids(row, tokenizer.decode, ("<think>", "</think>")) for row in ids]
    forms: list[dict[str, Any]] = [
        {"prompts": fed(prompts), "completions": said},
        {"prompts": messages, "completions": [[{"role": "assistant", "content": c}] for c in said]},
        {"prompts": messages, "completions": [torch.tensor(row) for row in ids]},
        {"prompts": [np.array(row) for row in x], "completions": ids},
        {
            "prompts": [[*a, *row[: s.start]] for a, row, s in zip(x, ids, split, strict=True)],
            "reasonings": [row[s.start : s.end] for row, s in zip(ids, split, strict=True)],
            "answers": [row[s.end : s.answer_end] for row, s in zip(ids, split, strict=True)],
        },
    ]
    found = [squelch.score(model, tokenizer, **form) for form in forms]
    for one in found:
        assert one.matrix == pytest.approx(found[0].matrix, abs=1e-4)
        assert one.answers is not None and one.answers.links is not None
        assert one.answers.links.metrics() == pytest.approx(found[0].answers.links.metrics(), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("make", [chatml_bpe, metaspace])
def test_ids_are_cut_where_the_text_is(make) -> None:
    tokenizer = make()

    def parts(text: str) -> list[str] | str:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found = split_ids(ids, lambda row: tokenizer.decode(row, skip_special_tokens=False), ("<think>", "</think>"))
        if isinstance(found, str):
            return found
        start, end, last = found
        cut = [ids[:start], ids[start:end], ids[end:last] if last else []]
        return [tokenizer.decode(part, skip_special_tokens=False).strip() for part in cut]

    said = "<think> go up</think> <answer>goal</answer> the end"
    assert parts(said) == ["<think>", "go up", "</think> <answer>goal</answer>"]
    assert parts("go up</think> the goal") == ["", "go up", "</think> the goal"]
    assert parts("<think> go up</think>") == ["<think>", "go up", ""]
    assert (parts("<think> go up"), parts("<think> </think> x")) == (UNCLOSED, EMPTY)
    assert parts("so <think> go up</think>") == TEXT_BEFORE


def test_text_of_a_policys_own_samples_has_the_ids_that_it_sampled(model, tokenizer, texts) -> None:
    """Unless it sampled a control token in a turn, which trainers leave out, or two words that text joins to one."""
    torch.manual_seed(0)
    x = [tokenizer.encode(f"{prompt}<think>", add_special_tokens=False) for prompt in fed(texts[0])]
    with torch.inference_mode():
        whole = model.generate(torch.tensor(x), do_sample=True, max_new_tokens=60, pad_token_id=tokenizer.eos_token_id)
    rows, end = whole[:, len(x[0]) :].tolist(), tokenizer.eos_token_id
    said = [row[: row.index(end)] if end in row else row for row in rows]
    special = set(tokenizer.all_special_ids)
    plain = [row for row in said if not special & set(row) and "</think>" in tokenizer.decode(row).split()]
    assert len(plain) > 4
    pairs = [(prompt, row) for prompt, row in zip(x, said, strict=True) if row in plain]
    text = [{"prompt": tokenizer.decode(a), "completion": tokenizer.decode(b)} for a, b in pairs]
    ids = [{"prompt_ids": a, "completion_ids": b} for a, b in pairs]
    reader = reader_of(tokenizer, model.config.vocab_size, ("<think>", "</think>"))
    one, other = (reader.read(list(enumerate(rows))) for rows in (text, ids))
    assert one.excluded[NO_TOKENS] <= len(plain) / 2 and set(one.rows) <= set(other.rows)
    for place, row in enumerate(one.rows):
        same = other.rows.tolist().index(row)
        assert one.prompts[one.source[place]].tolist() == other.prompts[other.source[same]].tolist()
        assert one.ids[place].tolist() == other.ids[same].tolist()
        if one.answers[place] is not None:
            assert one.answers[place].tolist() == other.answers[same].tolist()
    assert sum(answer is not None for answer in one.answers) > len(one.answers) / 3, "joined words cost the rest"


def test_what_cannot_be_scored_is_left_out_under_its_reason(model, tokenizer, texts) -> None:
    prompts, said = fed(texts[0]), [*texts[1]]
    said[0], said[4], said[8] = "<think> </think>", said[4].split("</think>")[0], "so " + said[8]
    found = squelch.score(model, tokenizer, prompts, said, links=False)
    assert found.samples.excluded == {EMPTY: 1, UNCLOSED: 1, TEXT_BEFORE: 1} == found.proxies.excluded
    assert (found.proxies.num_samples, found.answers) == (18, None)
    few = squelch.score(model, tokenizer, prompts, texts[1], max_prompts=4)
    assert few.matrix.shape == (12, 4)


def test_a_tokenizer_that_cuts_and_pads_stays_as_it_is_and_does_neither_here(tiny_policy, model, texts) -> None:
    cutting = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    cutting.backend_tokenizer.enable_truncation(2)
    cutting.backend_tokenizer.enable_padding(length=4)
    plain = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    found = squelch.score(model, cutting, fed(texts[0]), texts[1], links=False)
    assert np.array_equal(found.matrix, squelch.score(model, plain, fed(texts[0]), texts[1], links=False).matrix)
    assert cutting.backend_tokenizer.truncation["max_length"] == 2 and cutting.backend_tokenizer.padding["length"] == 4
    assert complete(plain) is plain.backend_tokenizer


X, Z = ["a", "b"], ["<think> go</think>"] * 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompts": X}, "give either `completions`, or `reasonings`"),
        ({"prompts": X, "completions": Z[:1]}, "2 `prompts`, 1 `completions`; each row needs one of each"),
        ({"prompts": "ab", "completions": Z}, "`prompts` is a str; it must hold one entry for each sample"),
        ({"prompts": [[1], [2]], "completions": Z}, "row 0: the prompt is ids and the rest is not"),
        ({"prompts": [[1], [-2]], "completions": [[1], [1]]}, r"`prompts\[1\]` must be one list of token ids"),
        ({"prompts": [[1], [2]], "reasonings": [[3], [150_000]]}, "row 1: token id 150000 is outside the vocabulary"),
        ({"prompts": [[1], []], "reasonings": [[3], [3]]}, "row 1: the prompt is empty"),
        ({"prompts": X, "completions": Z, "answers": [[1], [1]]}, "`answers` go with `reasonings`"),
        ({"prompts": X, "completions": Z, "markers": ("<think>", "")}, "`markers` must be two texts"),
        (
            {"prompts": X, "completions": Z, "reasoning": "before"},
            "`reasoning` is 'before'; it must be one of marked, ",
        ),
        ({"prompts": X, "completions": Z, "reasoning": "before_answer"}, "before_answer needs the text with which"),
        ({"prompts": X, "completions": Z, "answer": "####"}, "`reasoning` is marked and `answer` '####'"),
        ({"prompts": X, "completions": Z, "temperature": 0.0}, "temperature is 0.0; it must be above 0"),
        ({"prompts": ["a", "a"], "completions": Z}, "cannot express|2 reasonings of 1 distinct prompts"),
    ],
)
def test_bad_input_is_named(model, tokenizer, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        squelch.score(model, tokenizer, **given)


def test_completions_that_mark_no_reasoning_are_refused_with_the_two_ways_on(model, tokenizer, texts) -> None:
    bare = [said.split("</think>")[0].removeprefix("<think>") for said in texts[1]]
    asked = [prompt.replace("<|end|>", " Answer:<|end|>") for prompt in fed(texts[0])]
    ways = "if answers begin with a fixed text, reasoning=before_answer and answer=TEXT .* reasoning=completion"
    for prompts, words in ((fed(texts[0]), ways), (asked, "prompts ask for Answer:: reasoning=before_answer")):
        with pytest.raises(ValueError, match=f"{UNMARKED}: 21. No turn marks a reasoning .regime unmarked.: {words}"):
            squelch.score(model, tokenizer, prompts, bare)
    with pytest.raises(ValueError, match=f"{UNCLOSED}: 21. The markers say where a reasoning ends"):
        squelch.score(model, tokenizer, fed(texts[0]), [f"<think>{said}" for said in bare])


def test_a_reasoning_before_its_answer_is_scored_as_one_that_was_cut_out_by_hand(model, tokenizer, texts) -> None:
    """As text and as ids, by a text and by an expression; the answer begins with the token that holds its begin."""
    prompts, said = fed(texts[0]), [one.removeprefix("<think>").replace("</think>", "") for one in texts[1]]
    x, ids = ([tokenizer.encode(text, add_special_tokens=False) for text in rows] for rows in (prompts, said))
    answer = tokenizer.convert_tokens_to_ids("Ġ<answer>")
    hand = squelch.score(
        model,
        tokenizer,
        x,
        reasonings=[row[: row.index(answer)] for row in ids],
        answers=[row[row.index(answer) :] for row in ids],
    )
    assert hand.answers is not None and hand.answers.links is not None
    for completions, pattern in ((said, "<answer>"), (ids, "<answer>"), (said, "re:(?i)<ANS[a-z]+>")):
        given = prompts if completions is said else x
        found = squelch.score(model, tokenizer, given, completions, reasoning="before_answer", answer=pattern)
        assert found.matrix == pytest.approx(hand.matrix, abs=1e-4) and found.regime == hand.regime
        assert found.answers is not None and found.answers.links is not None
        assert found.answers.links.metrics()["dependence"] == pytest.approx(
            hand.answers.links.metrics()["dependence"], abs=1e-4
        )
        assert found.metrics() == pytest.approx(hand.metrics(), abs=1e-4)


def test_a_turn_that_reaches_no_answer_counts_as_one_that_never_closes(model, tokenizer, texts) -> None:
    prompts, said = fed(texts[0]), [one.replace("<answer>", "") if k < 4 else one for k, one in enumerate(texts[1])]
    found = squelch.score(model, tokenizer, prompts, said, reasoning="before_answer", answer="<answer>")
    assert found.proxies.excluded == {NO_ANSWER: 4} and found.samples.reasoned == 1.0
    with pytest.raises(ValueError, match="Give as `answer` the text with which answers begin"):
        squelch.score(model, tokenizer, prompts, said, reasoning="before_answer", answer="####")


def test_a_tokenizer_of_another_model_is_refused(tiny_policy, model, texts) -> None:
    larger = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    larger.add_tokens([f"more{i}" for i in range(4000)])
    with pytest.raises(ValueError, match="and the model has rows for the ids 0 to"):
        squelch.score(model, larger, fed(texts[0]), texts[1])
    with pytest.raises(ValueError, match="`tokenizer` is a str; a fast tokenizer is needed"):
        squelch.score(model, "tiny", fed(texts[0]), texts[1])


def test_messages_without_a_template_are_refused_with_what_would_do(tiny_policy, model, texts) -> None:
    silent = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    silent.chat_template = None
    messages = [[{"role": "user", "content": prompt}] for prompt in texts[0]]
    with pytest.raises(ValueError, match=r"has no chat template of its own .* Or give prompts as text, or as ids"):
        squelch.score(model, silent, messages, texts[1])


def test_answers_and_reasonings_are_scored_in_one_pass(model, tokenizer, samples, monkeypatch) -> None:
    alone, own = squelch.score(model, tokenizer, *samples, links=False), CrossScorer.matrix

    def of_the_probe_alone(engine: CrossScorer, prompts: Any, reasonings: Any, *given: Any) -> np.ndarray:
        assert len(reasonings) == 1, "the reasonings are fed again"
        return own(engine, prompts, reasonings, *given)

    with monkeypatch.context() as patch:
        patch.setattr(CrossScorer, "matrix", of_the_probe_alone)
        found = squelch.score(model, tokenizer, *samples)
    assert found.answers is not None and found.answers.links is not None
    assert found.matrix == pytest.approx(alone.matrix, abs=1e-4)
    prompts, said = samples
    unanswered = squelch.score(model, tokenizer, prompts, [*said[:-1], said[-1].split("</think>")[0] + "</think>"])
    assert unanswered.matrix == pytest.approx(alone.matrix, abs=1e-4) and unanswered.answers is not None
    assert unanswered.answers.excluded["no_answer"] == 1
