"""The difference of two images leads from one to the other, for any history."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster.diff import changes_between
from tests.cluster.world import acts, lived


@settings(max_examples=40, deadline=None)
@given(st.lists(acts, max_size=20), st.randoms(use_true_random=False))
def test_the_difference_between_two_images_leads_from_one_to_the_other(history, chance):
    world = lived(history)
    old = chance.choice(world.history)
    new = old.apply(*changes_between(old, world.image))
    settings = ("broker_configs", "group_configs")
    for part in ("brokers", "topics", "names", *settings, "tombstones", "controller_id", "controller_epoch"):
        assert getattr(new, part) == getattr(world.image, part), part
