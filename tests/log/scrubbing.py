"""A whole scrub of one log, as a broker does it, without a broker."""

from __future__ import annotations

from ottla.log.partition_log import PartitionLog
from ottla.log.scrub import Found, SegmentScrub, apply, derived_damage, prepare, rebuild_derived, take_up


def scrub(log: PartitionLog) -> tuple[list[Found], list[str]]:
    """What was found in batches, and which derived files were rebuilt."""
    damaged: list[Found] = []
    rebuilt: list[str] = []
    for segment in log.segments:
        walk = SegmentScrub(log, segment)
        while not walk.done:
            walk.step()
        walk.close()
        if walk.found:
            again = SegmentScrub(log, segment, again=True)
            while not again.done:
                again.step()
            assert again.found == walk.found
            patches = prepare(log, segment, walk.found)
            apply(log, segment, walk.found, patches)
            damaged += walk.found
            continue
        manifest = log.manifest.latest
        claim = None if manifest is None else manifest.claim(segment.base_offset)
        if claim is not None and segment is not log.active:
            wrong = derived_damage(log, claim)
            if wrong:
                rebuild_derived(log, segment, wrong, log.truncations)
                take_up(log, segment, wrong)
            rebuilt += wrong
    return damaged, rebuilt
