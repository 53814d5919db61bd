"""A group for the page: its trajectories in a grid, turn by turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from squelch.cluster.inspector.conversations import Conversations, ConversationTurn
from squelch.cluster.inspector.pictures import PictureView, marked_text, picture_view
from squelch.cluster.inspector.texts import Pieces, shown, tokens_html
from squelch.envs.grid_worlds.claims import GridJudge
from squelch.envs.registry import ENVIRONMENTS, judge_of
from squelch.kit.archive.rows import from_table
from squelch.kit.records.content import pictures_within
from squelch.kit.records.records import Trajectory, Turn

MOST_TOKENS = 1_500
"""Sampled tokens of a trajectory that are shown before the reader asks for all of them."""
_CONTROL_TOKEN = re.compile(r"<\|[^|>]{1,40}\|>")


@dataclass(frozen=True)
class Board:
    """A board: for each row, (symbol, what it shows) of each cell."""

    rows: tuple[tuple[tuple[str, str], ...], ...]

    @property
    def width(self) -> int:
        """Cells of a row."""
        return len(self.rows[0])


@dataclass(frozen=True)
class TurnView:
    """One turn. `fed`: what the policy was shown since its last turn in the segment, as text; `board`: the board in it;
    `pictures`: those in it; `cause`: why a segment begins with the turn, None if none but the first does."""

    number: int
    turn: Turn
    fed: Markup
    board: Board | None
    pictures: tuple[PictureView, ...]
    cause: str | None
    said: ConversationTurn | None
    """What it adds to a conversation in the model's own format; None for Squelch's turns."""
    tokens: Markup
    num_sampled: int
    num_hidden: int
    surprisal: float | None
    """Mean -log p of the sampled tokens, nats; None without a token."""

    @property
    def versions(self) -> str:
        """The policy versions that sampled the turn, e.g. `12` or `12-13`."""
        first, last = self.turn.version_min, self.turn.version_max
        return str(first) if first == last else f"{first}\u2013{last}"


@dataclass(frozen=True)
class TrajectoryView:
    """One trajectory with its turns."""

    trajectory: Trajectory
    turns: tuple[TurnView, ...]
    num_sampled: int
    num_hidden: int


@dataclass(frozen=True)
class GroupView:
    """A group. `facts`: the columns that its trajectories share; `opening`: the first prompt, which they share too;
    `trajectories`: those that failed first, then those that did not solve the task, each in order of their index."""

    facts: dict[str, Any]
    trajectories: tuple[TrajectoryView, ...]
    opening: Markup
    board: Board | None
    pictures: tuple[PictureView, ...]


def _grid(environment: str) -> GridJudge | None:
    """The reader of boards of a grid world of Squelch; None for other environments, which are never imported by
    name."""
    judge = judge_of(environment) if environment in ENVIRONMENTS else None
    return judge if isinstance(judge, GridJudge) else None


def board_of(environment: str, text: str) -> Board | None:
    """The last board in a text; None if the environment is no grid world, or none is there."""
    grid = _grid(environment)
    if grid is None or (rows := grid.board(text)) is None:
        return None
    return Board(tuple(tuple((symbol, grid.legend[symbol]) for symbol in row) for row in rows))


def readable(text: str) -> Markup:
    """A fed text without its template's control tokens, escaped."""
    return shown(re.sub(r"\n{2,}", "\n", _CONTROL_TOKEN.sub("\n", text)).strip())


def without_board(environment: str, text: str) -> str:
    """The text with each line of a drawn board left out."""
    grid = _grid(environment)
    return text if grid is None else grid.without_boards(text)


def group_view(
    table: pa.Table, pieces: Pieces, whole: bool = False, conversations: Conversations | None = None
) -> GroupView:
    """The view of a group's rows (`ARCHIVE_SCHEMA`); `whole`: all tokens, however many; `conversations`: of a run in
    the model's own format."""
    small = ["group_id", "step", "environment", "label", "split", "task_seed", "task_options", "task_key", "task_kind"]
    facts = table.slice(0, 1).select([*small, "worker", "score", "decision", "reason", "filter"]).to_pylist()[0]
    environment = facts["environment"]
    found = from_table(table)
    most = None if whole else MOST_TOKENS
    said = [None if conversations is None else conversations.turns(one) for one in found]
    views = tuple(trajectory_view(one, environment, pieces, most, own) for one, own in zip(found, said, strict=True))
    first = next((one for one in found if one.turns), found[0])
    ids, shown_in = (
        (first.prompt_ids(0), first.prompt_pictures(0)) if first.turns else (first.token_ids, first.pictures)
    )
    opening = marked_text(pieces, ids, shown_in)
    pictures = tuple(picture_view(picture, number) for number, picture in enumerate(shown_in, 1))
    ordered = tuple(sorted(views, key=_solved))
    return GroupView(facts, ordered, readable(opening), board_of(environment, opening), pictures)


def _solved(view: TrajectoryView) -> int:
    """0: the trajectory failed; 1: it did not solve the task; 2: it did."""
    return 0 if view.trajectory.failure else 1 + bool(view.trajectory.success)


def trajectory_view(
    trajectory: Trajectory,
    environment: str,
    pieces: Pieces,
    most_tokens: int | None = None,
    said: Sequence[ConversationTurn] | None = None,
) -> TrajectoryView:
    """The view of one trajectory, of which at most `most_tokens` sampled tokens are shown. `said`: what each turn adds
    to a conversation."""
    turns, last, left, before = [], 0, most_tokens, 0
    for index, turn in enumerate(trajectory.turns):
        shown_tokens = _size(turn) if left is None else min(_size(turn), left)
        segment, cause = trajectory.segment_of(index), None
        if segment != before:
            last, cause, before = trajectory.spans[segment][0], trajectory.segments[segment - 1].cause, segment
        view = _turn_view(trajectory, index + 1, last, cause, environment, pieces, shown_tokens)
        turns.append(view if said is None else replace(view, said=said[index]))
        last, left = turn.sample_end, None if left is None else left - shown_tokens
    sampled, hidden = sum(view.num_sampled for view in turns), sum(view.num_hidden for view in turns)
    return TrajectoryView(trajectory, tuple(turns), sampled, hidden)


def _size(turn: Turn) -> int:
    return turn.sample_end - turn.sample_start


def _turn_view(
    trajectory: Trajectory, number: int, last: int, cause: str | None, environment: str, pieces: Pieces, most: int
) -> TurnView:
    turn = trajectory.turns[number - 1]
    start, end = turn.sample_start, turn.sample_start + most
    log_probs = trajectory.log_probs[start : turn.sample_end]
    shown_in = pictures_within(trajectory.pictures, last, start)
    first = 1 + len(pictures_within(trajectory.pictures, 0, last))
    fed = marked_text(pieces, trajectory.token_ids[last:start], shown_in, first)
    reasoning = min(max(turn.reasoning_start - start, 0), most), min(max(turn.reasoning_end - start, 0), most)
    tokens = tokens_html(pieces.html(trajectory.token_ids[start:end]), log_probs[:most], reasoning)
    board = board_of(environment, fed)
    return TurnView(
        number=number,
        turn=turn,
        fed=readable(without_board(environment, fed) if board else fed),
        board=board,
        pictures=tuple(picture_view(picture, number) for number, picture in enumerate(shown_in, first)),
        cause=cause,
        said=None,
        tokens=tokens,
        num_sampled=_size(turn),
        num_hidden=_size(turn) - most,
        surprisal=float(-np.mean(log_probs, dtype=np.float64)) if len(log_probs) else None,
    )


def reasoning_log_probs(trajectory: Trajectory, turn: int) -> np.ndarray:
    """The rollout's log-probabilities of the reasoning, nats."""
    found = trajectory.turns[turn]
    return trajectory.log_probs[found.reasoning_start : found.reasoning_end]


def by_index(table: pa.Table) -> dict[int, Trajectory]:
    """The trajectories of a group's rows by their index."""
    return {one.index: one for one in from_table(table)}
