"""What the scorer's decoder is fed for pictures: each distinct one is encoded once while the weights stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from squelch.kit.packed.packing import Forest
from squelch.kit.packed.vision import features
from squelch.kit.pictures.arrays import Shown, positions_of, shown_of
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.content import Picture, PlacedPictures
from squelch.kit.records.shared_prefix import identities
from squelch.kit.scoring.passes import Columns, Place

Pictures = Sequence[Sequence[Picture]]
"""The pictures of each prompt."""

MAX_FEATURES = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Most numbers of features that are kept, by device (32 and 256 MiB in bfloat16)."""


class Spot(NamedTuple):
    """Fed tokens `at` (n,) that stand for the picture's placeholders from `first` on."""

    at: np.ndarray
    picture: Shown
    first: int = 0


def spots_within(pictures: Sequence[Shown], vision: Vision, start: int, end: int, offset: int) -> list[Spot]:
    """Those of a row whose tokens `[start, end)` are fed, its token `start` at `offset` among the fed."""
    found = []
    for one in pictures:
        low, high = max(one.position, start), min(one.position + one.num_tokens(vision), end)
        if low < high:
            found.append(Spot(np.arange(low, high) - start + offset, one, low - one.position))
    return found


class PictureFeatures:
    """The features of pictures under the model's present weights, by digest."""

    def __init__(self, model: PreTrainedModel, vision: Vision | None) -> None:
        """`vision`: how the model is fed pictures; None if it has no tower, or none are shown."""
        self.model, self.vision = model, vision
        self._known: dict[str, Tensor] = {}

    def shown(
        self, prompts: Sequence[np.ndarray], pictures: Pictures | None
    ) -> tuple[Sequence[np.ndarray], list[list[Shown]] | None]:
        """(The prompts' identities, what is fed of their pictures; None if there is none). Raises ValueError for
        pictures that the model cannot be fed."""
        if pictures is None or not any(pictures):
            return prompts, None
        vision, known = self._seeing(), dict[str, Shown]()
        fed = [shown_of(own, vision, f"prompt {j}", known) for j, own in enumerate(pictures)]
        return identities(prompts, pictures), fed

    def _seeing(self) -> Vision:
        if self.vision is None:
            raise ValueError(
                "the prompts show pictures, and the scorer's model has no vision tower; set scorer.enabled=false, or "
                "score with a model that has one"
            )
        return self.vision

    def positions(self, prompts: Sequence[np.ndarray], fed: Sequence[Sequence[Shown]]) -> list[np.ndarray]:
        """(3, length) positions of each prompt's tokens."""
        return [positions_of(len(x), own, self._seeing()) for x, own in zip(prompts, fed, strict=True)]

    def of_row(self, ids: np.ndarray, pictures: PlacedPictures) -> tuple[Tensor | None, list[Spot]]:
        """(Positions (3, 1, length), None without pictures; where the pictures are) of a row that is fed alone."""
        shown = self.shown([ids], [[Picture.of(at, picture) for at, picture in pictures]])[1]
        if shown is None:
            return None, []
        self.forget()
        positions = torch.from_numpy(self.positions([ids], shown)[0][:, None]).to(self._device)
        return positions, spots_within(shown[0], self._seeing(), 0, len(ids), 0)

    def spots(self, columns: Columns, chosen: Sequence[int], start: int, end: int | None = None) -> list[Spot]:
        """Where the pictures of these prompts are, if their tokens `[start, end)` are fed, padded (None: to their
        ends)."""
        if columns.pictures is None:
            return []
        ends = [len(columns.prompts[j]) if end is None else end for j in chosen]
        longest, found = max(ends) - start, list[Spot]()
        for row, (j, last) in enumerate(zip(chosen, ends, strict=True)):
            found += spots_within(columns.pictures[j], self._seeing(), start, last, row * longest)
        return found

    def packed_spots(self, columns: Columns, places: Sequence[Place], forest: Forest) -> list[Spot]:
        """Where the pictures of packed rows are; those that rows share once."""
        if columns.pictures is None:
            return []
        found: dict[int, Spot] = {}
        for (j, _), at in zip(places, forest.places, strict=True):
            for spot in spots_within(columns.pictures[j], self._seeing(), 0, len(at), 0):
                found.setdefault(int(at[spot.at[0]]), Spot(at[spot.at], spot.picture))
        return list(found.values())

    def fed(self, ids: Tensor, spots: Sequence[Spot]) -> dict[str, Tensor]:
        """The decoder's argument for (rows, num_tokens) ids: themselves, or embeddings if pictures are among them."""
        return {"inputs_embeds": self.embeds(ids, spots)} if spots else {"input_ids": ids}

    def forget(self) -> None:
        """The weights may have changed."""
        self._known.clear()

    def embeds(self, ids: Tensor, spots: Sequence[Spot]) -> Tensor:
        """(rows, num_tokens, width): embeddings of (rows, num_tokens) ids, with features at the spots, whose tokens
        count over all rows."""
        embeds = self.model.get_input_embeddings()(ids)
        self._encode(spot.picture for spot in spots)
        found = [self._known[one.picture.digest][one.first : one.first + len(one.at)] for one in spots]
        places = torch.from_numpy(np.concatenate([spot.at for spot in spots])).to(ids.device)
        return embeds.flatten(0, 1).index_copy(0, places, torch.cat(found).to(embeds.dtype)).view_as(embeds)

    def _encode(self, pictures: Iterable[Shown]) -> None:
        """Adds the pictures; the others go if there are too many."""
        asked = {one.digest: one for one in pictures}
        if sum(own.numel() for own in self._known.values()) > MAX_FEATURES[self._device.type]:
            self._known = {digest: own for digest, own in self._known.items() if digest in asked}
        if new := [one for digest, one in asked.items() if digest not in self._known]:
            patches = torch.from_numpy(np.concatenate([one.patches for one in new])).to(self._device)
            grids = torch.tensor([(1, *one.grid) for one in new], device=self._device)
            parts = features(self.model, patches, grids).split([one.num_tokens(self._seeing()) for one in new])
            self._known |= {one.digest: part for one, part in zip(new, parts, strict=True)}

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
