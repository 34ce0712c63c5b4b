"""Waiting for conditions, with and without a loop."""

from __future__ import annotations

import asyncio

import pytest

from ottla.local.waiting import NotInTime, until, wait_for


def test_wait_for_returns_the_value_of_the_condition():
    values = iter([0, None, "there"])
    assert wait_for(lambda: next(values), "a value") == "there"


def test_a_timeout_names_the_condition_and_the_limit():
    with pytest.raises(NotInTime, match=r"rain: did not happen within 0\.02 s") as late:
        wait_for(lambda: 0, "rain", 0.02)
    assert late.value.seen == 0


def test_until_takes_functions_and_coroutines():
    numbers = iter(range(9))

    async def look():
        return next(numbers)

    async def test():
        assert await until(lambda: next(numbers), "one") == 1
        assert await until(look, "four", holds=lambda number: number > 3) == 4

    asyncio.run(test())


def test_a_timeout_has_the_last_value():
    with pytest.raises(NotInTime, match="five: did not happen") as late:
        asyncio.run(until(lambda: 4, "five", 0.02, holds=lambda number: number == 5))
    assert late.value.seen == 4
