"""A whole scrub of one log, as a broker does it, without a broker."""

from __future__ import annotations

from ottla.log import scrub_repair
from ottla.log.partition_log import PartitionLog
from ottla.log.scrub import Found, SegmentScrub


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
            patches = scrub_repair.prepare(log, segment, walk.found)
            scrub_repair.apply(log, segment, walk.found, patches)
            damaged += walk.found
            continue
        manifest = log.manifest.latest
        claim = None if manifest is None else manifest.claim(segment.base_offset)
        if claim is not None and segment is not log.active:
            wrong = scrub_repair.derived_damage(log, claim)
            if wrong:
                scrub_repair.rebuild_derived(log, segment, wrong, log.truncations)
                scrub_repair.take_up(log, segment, wrong)
            rebuilt += wrong
    return damaged, rebuilt
