"""Waiting for conditions, with and without a loop."""

from __future__ import annotations

import asyncio

import pytest

from ottla.local.waiting import NotInTime, until, wait_for


def test_the_value_of_the_condition_is_the_answer():
    values = iter([0, None, "there"])
    assert wait_for(lambda: next(values), "a value") == "there"


def test_a_condition_that_never_holds_is_named_with_the_limit():
    with pytest.raises(NotInTime, match=r"waited 0\.02 s in vain for rain") as late:
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


def test_until_tells_what_was_seen_last():
    with pytest.raises(NotInTime, match="in vain for five") as late:
        asyncio.run(until(lambda: 4, "five", 0.02, holds=lambda number: number == 5))
    assert late.value.seen == 4
