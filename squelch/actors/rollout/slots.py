"""Slots of the cache for requests that decode, without vLLM's search where there is nothing to find.

In every step vLLM asks its cache for a slot for the next token of each running request, which is most of what its
scheduler spends. In all steps but one of a block's, the request's last block has room, no block becomes full, and the
answer is that nothing is needed. `spare_slots` gives that answer at once, and leaves all other questions to vLLM.

It holds where vLLM's own code changes nothing: one group of layers with full attention, whose blocks are hashed whole,
and no speculation. Other models are served as before.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.request import Request, RequestStatus


def spare_slots(scheduler: Scheduler) -> None:
    """Changes the scheduler's cache, if its layers are such."""
    manager: KVCacheManager = scheduler.kv_cache_manager
    groups = manager.coordinator.single_type_managers
    if len(groups) != 1 or type(groups[0]) is not FullAttentionManager or scheduler.num_lookahead_tokens:
        return
    if not manager.enable_caching or groups[0].block_size != manager.block_pool.hash_block_size:
        return
    _spare(manager, groups[0])


def _spare(manager: KVCacheManager, group: SingleTypeKVCacheManager) -> None:
    allocate, cache, size = manager.allocate_slots, manager.coordinator.cache_blocks, group.block_size
    blocks, num_cached, copied = group.req_to_blocks, group.num_cached_block, group._partial_hit_reqs
    nothing, running = manager.empty_kv_cache_blocks, RequestStatus.RUNNING

    def allocate_slots(request: Request, num_new_tokens: int, *others: Any, **named: Any) -> KVCacheBlocks | None:
        name, needed = request.request_id, request.num_computed_tokens + num_new_tokens
        if (
            request.status == running
            and num_new_tokens == 1
            and name in num_cached
            and needed <= len(blocks[name]) * size
            and min(needed, request.num_tokens) // size <= num_cached[name]
            and name not in copied
        ):
            return nothing
        return allocate(request, num_new_tokens, *others, **named)

    def cache_blocks(request: Request, num_computed_tokens: int) -> None:
        if num_computed_tokens // size > num_cached.get(request.request_id, 0):
            cache(request, num_computed_tokens)

    vars(manager)["allocate_slots"], vars(manager.coordinator)["cache_blocks"] = allocate_slots, cache_blocks
