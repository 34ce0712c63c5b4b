"""Settings of a producer, and where its records are."""

from __future__ import annotations

import pytest

from ottla.client.errors import BadSetting
from ottla.client.producing.produce_requests import ProducerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": 2},
        {"acks": 1, "enable_idempotence": True},
        {"compression_type": "zip"},
        {"max_in_flight_requests_per_connection": 6},
        {"acks": 0, "transactional_id": "x"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(BadSetting):
        ProducerSettings(**wrong)
