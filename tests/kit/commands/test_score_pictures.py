"""`squelch score` reads files with pictures: each form gives the prompt that the codec feeds, and what is not exactly
one picture that the model can be shown is refused with file, row and column."""

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageFile

from squelch.actors.play.codec import ChatCodec
from squelch.cluster.cli import main
from squelch.kit.api.samples import Reasonings
from squelch.kit.api.turns import Turns
from squelch.kit.base.errors import UserError
from squelch.kit.diagnosis.metrics import MODALITY_KEYS
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.pictures.geometry import Vision, vision_of
from squelch.kit.pictures.patches import patches
from squelch.kit.readers.pictures import MOST, resized
from squelch.kit.readers.score_files import Reader, read_samples
from squelch.kit.records.picture_files import png_of
from squelch.kit.records.pictures import Picture, Shown
from tests.kit.commands.test_score import jsonl, output, refusal
from tests.kit.scoring.test_pictures import plainly
from tests.pictures import picture
from tests.seeing import CHAT_TEMPLATE, VOCABULARY, board, make_talking_model

pytestmark = pytest.mark.usefixtures("rendered_here")
Row = dict[str, Any]
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
SAID = [f"<think> {z}</think> <answer> {a}</answer>" for z, a in (("a b c", "d"), ("e f", "g"), ("h", "d"))]
ASKED = [(f" {letter}", board(seed)) for seed, letter in enumerate("pqrstu")]
"""(text, board) of each prompt."""


@pytest.fixture(scope="module")
def talking(seeing_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_model(seeing_dir, tmp_path_factory.mktemp("talking") / "model")


def url(shown: Picture) -> str:
    return "data:image/png;base64," + base64.b64encode(png_of(shown)).decode()


def messages(*parts: Any) -> list[Row]:
    """Contents are all texts, or all parts, as a table needs them."""
    rules, shown = ("a", parts[0]) if isinstance(parts[0], str) else ([text("a")], [*parts])
    return [{"role": "system", "content": rules}, {"role": "user", "content": shown}]


def text(said: str) -> Row:
    return {"type": "text", "text": said}


def trl(said: str, shown: Picture) -> Row:
    return {"prompt": messages({"type": "image"}, text(said)), "images": [{"bytes": png_of(shown), "path": None}]}


def verl(said: str, shown: Picture) -> Row:
    return {"prompt": messages(f"<image>{said}"), "images": [{"bytes": png_of(shown), "path": "a.png"}]}


def openai(said: str, shown: Picture) -> Row:
    return {"prompt": messages({"type": "image_url", "image_url": {"url": url(shown)}}, text(said))}


def rendered(said: str, shown: Picture, place: str = PLACE) -> Row:
    whole = f"<|im_start|>system\na<|im_end|>\n<|im_start|>user\n{place}{said}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": whole, "image": {"bytes": png_of(shown)}}


def marked(said: str, shown: Picture) -> Row:
    return rendered(said, shown, "<image>")


def whole(said: str, shown: Picture) -> Row:
    """As a trainer logs what it fed: a placeholder for each token."""
    return rendered(said, shown, PLACE.replace("<|image_pad|>", "<|image_pad|>" * 9))


def rows_of(form: Callable[[str, Picture], Row], asked: list[tuple[str, Picture]] = ASKED) -> list[Row]:
    return [
        {**form(*each), "completion": SAID[(place + k) % 3], "step": 4}
        for place, each in enumerate(asked)
        for k in (0, 1)
    ]


def parquet(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(
    path: Path, model: Path, vision: Vision, pictures: Path | None = None, resize: bool = False, turns: Turns = "first"
) -> Reasonings:
    found = read_samples(path, pictures=pictures).rows
    markers = ("<think>", "</think>")
    return Reader(path, model, VOCABULARY, markers, turns, vision=vision, resize=resize).read(found)


def fed(model: Path) -> list[tuple[list[int], int]]:
    """(ids, place of the board) of each prompt, as a run feeds it."""
    codec, found = ChatCodec(model), []
    for said, shown in ASKED:
        ids, ((at, _),) = codec.first_fed([messages("")[0], {"role": "user", "content": Shown.of(shown, said)}])
        found.append((ids.tolist(), at))
    return found


# --- what is read ---


@pytest.mark.parametrize("form", [trl, verl, openai, rendered, marked, whole])
def test_each_form_of_a_row_becomes_the_prompt_that_the_codec_feeds(tmp_path, talking, vision, form) -> None:
    found = read(parquet(tmp_path / "rows.parquet", rows_of(form)), talking, vision)
    assert [prompt.tolist() for prompt in found.prompts] == [ids for ids, _ in fed(talking)]
    assert [own.position for (own,) in found.pictures] == [at for _, at in fed(talking)]
    assert [own.decoded("here") for (own,) in found.pictures] == [shown for _, shown in ASKED]
    assert found.source.tolist() == [place for place in range(6) for _ in (0, 1)]


def test_ids_and_json_lines_and_paths_are_read_as_well(tmp_path, talking, vision) -> None:
    (tmp_path / "shown").mkdir()
    rows = []
    for place, (ids, _) in enumerate(fed(talking)):
        Image.fromarray(ASKED[place][1].rgb).save(tmp_path / "shown" / f"{place}.png", compress_level=9)
        rows.append({"prompt_ids": ids, "reasoning_ids": [20], "images": [f"shown/{place}.png"]})
    found = read(Path(jsonl(tmp_path / "rows.jsonl", rows)), talking, vision)
    assert [prompt.tolist() for prompt in found.prompts] == [ids for ids, _ in fed(talking)]
    assert [own.decoded("here") for (own,) in found.pictures] == [shown for _, shown in ASKED]


def test_messages_beside_ids_show_their_own_pictures(tmp_path, talking, vision) -> None:
    rows = [
        {**openai(*each), "prompt_ids": ids, "reasoning_ids": [20]}
        for (ids, _), each in zip(fed(talking), ASKED, strict=True)
    ]
    found = read(Path(jsonl(tmp_path / "rows.jsonl", rows)), talking, vision)
    assert [own.decoded("here") for (own,) in found.pictures] == [shown for _, shown in ASKED]


def test_prompts_with_one_text_and_different_pictures_are_different_prompts(tmp_path, talking, vision) -> None:
    asked = [(" p", shown) for _, shown in [*ASKED, ASKED[0]]]
    found = read(parquet(tmp_path / "rows.parquet", rows_of(verl, asked)), talking, vision)
    assert len(found.prompts) == len({prompt.tobytes() for prompt in found.prompts}) + 5 == 6
    assert found.source.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0, 0]
    few = found.subset(found.source > 3, "few")
    assert [own.decoded("here") for (own,) in few.pictures] == [shown for _, shown in ASKED[4:]]


def test_a_prompts_id_goes_with_its_text_and_its_pictures(tmp_path, talking, vision) -> None:
    asked = [(" p", shown) for _, shown in ASKED]
    rows = [{**row, "prompt_id": place // 2} for place, row in enumerate(rows_of(verl, asked))]
    path = parquet(tmp_path / "rows.parquet", rows)
    assert read_samples(path).notes == [] and len(read(path, talking, vision).prompts) == 6
    path = parquet(tmp_path / "rows.parquet", [{**row, "prompt_id": 0} for row in rows])
    with pytest.raises(UserError, match="row 3: the prompt's id 0 is that of row 1, whose prompt differs"):
        read(path, talking, vision)


def test_later_turns_are_fed_the_pictures_of_the_prompt(tmp_path, talking, vision) -> None:
    said = {"role": "assistant", "content": [text(SAID[0])]}
    told = {"role": "user", "content": [text(" z")]}
    rows = [{**row, "completion": [said, told, said]} for row in rows_of(trl)]
    path = parquet(tmp_path / "rows.parquet", rows)
    found = read(path, talking, vision, turns="all")
    first, later = found.prompts[:2], found.pictures[:2]
    assert len(first[0]) < len(first[1]) and later[0] == later[1] and len(found.prompts) == 12
    assert first[1][: len(first[0]) - 1].tolist() == first[0][:-1].tolist(), "all but the opening of the reasoning"


def test_the_messages_of_an_episode_keep_their_pictures(tmp_path, talking, vision) -> None:
    def node(parent: int | None, sampled: bool, **message: Any) -> Row:
        return {"message": message, "sampled": sampled} | ({} if parent is None else {"parent": parent})

    def trace(said: str, shown: Picture) -> Row:
        part = {"type": "image_url", "image_url": {"url": url(shown)}}
        first, second = messages(part, text(said))
        nodes = [node(None, False, **first), node(0, False, **second), node(1, True, role="assistant", content=SAID[0])]
        return {"task": {}, "nodes": nodes}

    path = Path(jsonl(tmp_path / "traces.jsonl", [trace(*each) for each in ASKED]))
    assert [ids.tolist() for ids in read(path, talking, vision).prompts] == [ids for ids, _ in fed(talking)]


def test_a_text_that_names_pictures_shows_none(tmp_path, talking, vision) -> None:
    named = [{**row, "prompt": messages({"type": "image"}, text(f" a{PLACE} b"))} for row in rows_of(trl)]
    found = read(parquet(tmp_path / "rows.parquet", named), talking, vision)
    assert all((prompt == vision.picture_id).sum() == 9 for prompt in found.prompts)
    assert [ids[one.position - 1] for ids, (one,) in zip(found.prompts, found.pictures, strict=True)] == [90] * 6


def test_resizing_is_asked_for_and_then_the_published_processors(tmp_path, talking, vision, seeing_dir) -> None:
    odd = [(said, picture(said.encode(), 21, 30)) for said, _ in ASKED]
    path = parquet(tmp_path / "rows.parquet", rows_of(verl, odd))
    with pytest.raises(UserError, match=r"row 1, column `images`, picture 1: .*24 x 32 would fit \(--resize\)"):
        read(path, talking, vision)
    shown = [own.decoded("here") for (own,) in read(path, talking, vision, resize=True).pictures]
    assert [one.size for one in shown] == [(24, 32)] * 6 and shown[0] == resized(odd[0][1], (24, 32))
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    published = module.Qwen2VLImageProcessorPil.from_pretrained(seeing_dir, local_files_only=True)
    for one, (_, given) in zip(shown, odd, strict=True):
        theirs = published([given.rgb], return_tensors="np", input_data_format="channels_last")
        assert np.array_equal(patches(one.rgb, vision), theirs["pixel_values"])


def test_the_size_is_judged_before_a_pixel_is_decoded(tmp_path, talking, vision, monkeypatch) -> None:
    path = parquet(tmp_path / "rows.parquet", rows_of(verl, [(said, picture(b"x", 21, 30)) for said, _ in ASKED]))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were decoded"))
    with pytest.raises(UserError, match=r"24 x 32 would fit \(--resize\)"):
        read(path, talking, vision)


# --- what is scored ---


def test_a_file_with_pictures_is_scored_as_the_model_itself_reads_it(tmp_path, talking, vision, capsys) -> None:
    out, path = tmp_path / "scores.npz", str(parquet(tmp_path / "rows.parquet", rows_of(trl)))
    found = output(capsys, "score", path, "--model", str(talking), "--out", str(out), "--force")
    data, own = np.load(out), load_model_folder(talking, torch.float32)
    samples = read(Path(path), talking, vision)
    for i, j in ((0, 0), (0, 3), (5, 2)):
        z = samples.ids[2 * i]
        wanted = plainly(own, vision, (samples.prompts[j], samples.pictures[j]), z)
        assert data["log_likelihood"][i, 0, j] == pytest.approx(wanted, abs=1e-4 * len(z))
    assert set(found["modality"]) == set(MODALITY_KEYS) and found["links"]["answers"] == 12
    assert np.isfinite([found["modality"][key] for key in ("picture", "text", "picture_p_value", "blank")]).all()
    assert data["modality_picture"] == found["modality"]["picture"]
    assert main(["score", path, "--model", str(talking), "--force"]) == 0
    table = capsys.readouterr().out
    assert f"D_V  {found['modality']['picture']:.4f}" in table and "D_T" in table


def test_what_pictures_add_is_not_known_of_one_picture_and_what_text_adds_not_of_one_text(
    tmp_path, talking, capsys
) -> None:
    one_text = [(" p", shown) for _, shown in ASKED]
    one_picture = [(said, ASKED[0][1]) for said, _ in ASKED]
    for asked, known in ((one_text, "picture"), (one_picture, "text")):
        path = str(parquet(tmp_path / f"{known}.parquet", rows_of(trl, asked)))
        found = output(capsys, "score", path, "--model", str(talking), "--force", "--no-links")["modality"]
        assert [name for name in ("picture", "text") if found[name] is not None] == [known]


def test_a_file_of_text_has_no_word_of_pictures_whatever_the_model_sees(tmp_path, talking, capsys) -> None:
    rows = [{**row, "prompt": row["prompt"].replace(PLACE, "")} for row in rows_of(rendered)]
    bare = [{key: value for key, value in row.items() if key != "image"} for row in rows]
    said = []
    for each in (bare, [{**row, "images": []} for row in bare], [{**row, "image": ""} for row in bare]):
        path, out = jsonl(tmp_path / "r.jsonl", each), tmp_path / "s.npz"
        argv = ["score", path, "--model", str(talking), "--force", "--no-links", "--out", str(out)]
        assert main(argv) == 0 and main([*argv, "--json"]) == 0
        said.append((capsys.readouterr().out, sorted(np.load(out))))
    assert said[0] == said[1] == said[2] and "modality" not in said[0][0]
    assert said[0][1] == ["lengths", "log_likelihood", "prompt_id", "rows"]


# --- what is refused ---


def encoded(mode: str = "RGB", form: str = "PNG", size: tuple[int, int] = (24, 24), **options: Any) -> bytes:
    written = io.BytesIO()
    Image.new(mode, size).save(written, format=form, **options)
    return written.getvalue()


TURNED = Image.Exif()
TURNED[0x0112] = 6
FRAMES = {"save_all": True, "append_images": [Image.new("RGB", (24, 24), "blue")]}


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ([encoded()[:-20]], "a PNG without its end"),
        ([encoded(form="JPEG")[:200]], "a PNG or JPEG that cannot be decoded"),
        ([encoded(form="GIF")], "no PNG or JPEG .begins with b'GIF8"),
        ([encoded(**FRAMES)], "an animation"),
        ([encoded("RGBA")], "pixels of the mode RGBA; 8-bit RGB is needed"),
        ([encoded("CMYK", "JPEG")], "pixels of the mode CMYK"),
        ([encoded(form="JPEG", exif=TURNED)], "EXIF orientation 6"),
        ([encoded(size=(5000, 5000))], "5000 x 5000 pixels, more than"),
        ([encoded(size=(24, 20))], r"multiples of 8 .*24 x (16|24) would fit \(--resize\)"),
        ([{"bytes": "no base64!"}], "no base64"),
        ([{"name": "a"}], r"is None; a picture is bytes"),
        ([7], r"is 7; a picture is bytes"),
        (["http://there/a.png"], "'http://there/a.png', and nothing is fetched"),
        (["HTTP://there/a.png"], "nothing is fetched"),
        (["none.png"], "none.png does not exist"),
        (["."], "is a folder"),
        (["../out.png"], "leads out of .*--pictures DIR"),
        (["link.png"], "leads out of .*--pictures DIR"),
        (["a\0b"], "null"),
    ],
)
def test_what_is_not_exactly_one_picture_is_refused_with_file_row_and_column(
    tmp_path, talking, vision, images, says
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (tmp_path / "out.png").write_bytes(encoded())
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    kept = [{"bytes": one} if isinstance(one, bytes) else one for one in images]
    row = {"prompt": messages("<image> a"), "completion": SAID[0], "images": kept}
    if isinstance(images[0], bytes):
        path = parquet(folder / "r.parquet", [row])
    else:
        path = Path(jsonl(folder / "r.jsonl", [row]))
    with pytest.raises(UserError, match=says) as error:
        read(path, talking, vision)
    assert str(error.value).startswith(f"{path}, row 1, column `images`, picture 1")


def test_a_folder_that_the_user_names_may_lie_elsewhere(tmp_path, talking, vision) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "a.png").write_bytes(encoded())
    rows = [{"prompt": messages("<image> a"), "completion": SAID[0], "images": [str(tmp_path / "a.png")]}]
    path = Path(jsonl(tmp_path / "rows" / "r.jsonl", rows))
    with pytest.raises(UserError, match="leads out of"):
        read(path, talking, vision)
    assert len(read(path, talking, vision, pictures=tmp_path).pictures) == 1


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": messages("<image><image> a")}, "places for 2 pictures, and its columns .* hold 1"),
        ({"prompt": messages(" a")}, "places for 0 pictures, .* hold 1; give one .*, or remove a column"),
        ({"prompt": messages({"type": "image"}, text(" a")), "images": None}, "places for 1 pictures.* hold 0"),
        ({"prompt": " a"}, "places for 0 pictures, and the row has 1"),
        ({"prompt": f"{PLACE}{PLACE} a"}, "places for 2 pictures, and the row has 1"),
        ({"prompt": PLACE.replace("pad|>", "pad|><|image_pad|>") + " a"}, "is 9 placeholders, and the prompt has 2"),
        ({"prompt_ids": [90, 92, 91, 90, 92, 91, 20], "reasoning_ids": [20]}, "places for 2 pictures"),
        ({"prompt": f"{PLACE} a", "images": None}, "places for 1 pictures, and the row has 0"),
        ({"prompt": messages({"type": "video"}, text(" a"))}, "message 2 of the prompt: videos are not read"),
        ({"videos": ["a.mp4"]}, "column `videos`: videos are not read"),
        ({"images": [{"bytes": encoded()}] * (MOST + 1)}, f"{MOST + 1} pictures; at most {MOST} a row"),
    ],
)
def test_a_prompt_whose_places_are_not_its_pictures_is_refused_with_file_and_row(
    tmp_path, talking, vision, row, says
) -> None:
    good = {"prompt": messages("<image> a"), "completion": SAID[0], "images": [{"bytes": encoded()}]}
    path = parquet(tmp_path / "r.parquet", [{**good, **row}])
    with pytest.raises(UserError, match=says) as error:
        read(path, talking, vision)
    assert str(error.value).startswith(f"{path}, row 1")


def test_a_model_without_a_tower_is_refused_by_name(tmp_path, tiny_policy, capsys) -> None:
    path = str(parquet(tmp_path / "r.parquet", rows_of(trl)))
    said = refusal(capsys, "score", path, "--model", str(tiny_policy))
    assert f"{path}, row 1, column `images`, picture 1: the model in {tiny_policy} has no vision tower" in said


def test_a_template_that_does_not_write_the_parts_as_a_run_feeds_them_is_refused(tmp_path, talking, vision) -> None:
    model = Path(shutil.copytree(talking, tmp_path / "model"))
    last = CHAT_TEMPLATE.replace("m.content %}\n{%-", "m.content | sort(attribute='type', reverse=true) %}\n{%-")
    for template in (last, CHAT_TEMPLATE.replace("part.text", "part.text ~ 'x'"), "{{ messages[1].content }}"):
        assert template != CHAT_TEMPLATE
        (model / "chat_template.jinja").write_text(template)
        path = parquet(tmp_path / "r.parquet", rows_of(trl))
        with pytest.raises(UserError, match="row 1: the chat template does not write a message's texts and pictures"):
            read(path, model, vision)


def test_a_tokenizer_that_spells_pictures_as_text_is_refused(tmp_path, talking, vision) -> None:
    model = Path(shutil.copytree(talking, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "image_token_id": 20}))
    path = parquet(tmp_path / "r.parquet", rows_of(trl))
    with pytest.raises(UserError, match=r"the ids \[20\] stand for pictures .* no special tokens"):
        read(path, model, vision_of(model))
