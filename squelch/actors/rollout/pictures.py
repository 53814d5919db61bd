"""Pictures in vLLM 0.32: requests of expanded ids and patches, and the model that takes them.

vLLM would rather be given pictures as files: it loads Hugging Face's processor, which needs a tokenizer and
torchvision, and expands placeholders itself, so that ids which hold all of them would be expanded again. Here the
caller makes both (`actors.play.codec`, `kit.pictures`), and vLLM's own class serves with a processor that does
nothing. A model without a tower imports nothing of this.

Invariants:

- A picture is known by its place in the ids. A placeholder id elsewhere, which the policy sampled, is text.
- vLLM's prefix and encoder caches know a picture by the digest of its pixels (`kit.records.pictures.Picture.identity`),
  so equal ids with other pictures share nothing from the first that differs on. Both are cleared when weights are
  loaded.
- Patches arrive normalised. vLLM would normalise them once more on the device, without an error, unless
  `mm_device_do_normalize` is off.

`PROVEN_ON` is the version of vLLM whose internals this was compared with (`tests/actors/rollout/test_pictures.py`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

import torch

from squelch.kit.pictures.geometry import Vision
from squelch.kit.pictures.patches import patches
from squelch.kit.records.content import PlacedPictures

if importlib.util.find_spec("torchvision") is None:
    # vLLM's module takes one pure function from the processor that needs torchvision; the one without it has it too.
    import transformers.models.qwen2_vl.image_processing_pil_qwen2_vl as without_torchvision

    sys.modules.setdefault("transformers.models.qwen2_vl.image_processing_qwen2_vl", without_torchvision)
    vars(without_torchvision).setdefault("Qwen2VLImageProcessor", without_torchvision.Qwen2VLImageProcessorPil)

from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessingInfo
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.parse import MultiModalDataParser
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor

PROVEN_ON = "0.32.0"


def shown_input(ids: list[int], pictures: PlacedPictures, vision: Vision) -> MultiModalInput:
    """vLLM's input for a prompt in which each picture has its placeholders. Raises ValueError where it has not."""
    items, places = [], []
    for position, picture in pictures:
        grid, count = vision.grid(*picture.size), vision.tokens(*picture.size)
        if ids[position : position + count] != [vision.picture_id] * count:
            raise ValueError(
                f"a picture of {count} tokens is not at index {position} of a prompt of {len(ids)} ids: all of its "
                f"placeholders ({vision.picture_id}) are needed there"
            )
        fed = torch.from_numpy(patches(picture.rgb, vision))
        shape = torch.tensor((1, grid.rows, grid.columns))
        item = {
            "pixel_values": MultiModalFieldElem(fed, MultiModalFlatField(slices=[slice(0, len(fed))])),
            "image_grid_thw": MultiModalFieldElem(shape, MultiModalBatchedField(keep_on_cpu=True)),
        }
        items.append(MultiModalKwargsItem(item))
        places.append(PlaceholderRange(offset=position, length=count))
    known_by = [picture.identity for _, picture in pictures]
    return mm_input(ids, MultiModalKwargsItems({"image": items}), {"image": known_by}, {"image": places})


class _Info(Qwen2_5_VLProcessingInfo):
    """What vLLM asks of a model's processor, without one."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Any number of pictures; no videos."""
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """A picture may fill the context: the codec's sizes and the prompt's length bound it."""
        return {"image": seq_len}

    def get_data_parser(self) -> MultiModalDataParser:
        """None of its own, which would ask for a processor."""
        return MultiModalDataParser()

    def get_hf_processor(self, **kwargs: object) -> Any:
        """Refused: nothing may process a picture a second time."""
        raise RuntimeError("pictures arrive as patches; vLLM asked for a processor of pictures")


class _NoDummies(BaseDummyInputsBuilder[_Info]):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """No picture is tried at the start (`skip_mm_profiling`)."""
        return ""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> dict[str, Any]:
        """As `get_dummy_text`."""
        return {}


class _NoProcessor(BaseMultiModalProcessor[_Info]):
    requires_tokenizer = False

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> dict[str, Any]:
        return {}

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, object], out_mm_kwargs: Any
    ) -> list[Any]:
        return []


@MULTIMODAL_REGISTRY.register_processor(_NoProcessor, info=_Info, dummy_inputs=_NoDummies)
class ShownQwen25VL(Qwen2_5_VLForConditionalGeneration):
    """vLLM's Qwen2.5-VL, whose pictures arrive as patches."""
