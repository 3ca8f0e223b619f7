"""Functions for map: a plain one, and an async one whose calls end in another order than they begin."""

import asyncio
from typing import Any


def square(number: Any) -> int:
    return int(number) ** 2


async def square_soon(number: Any) -> int:
    for _ in range(int(number) * 7 % 5):
        await asyncio.sleep(0)
    return int(number) ** 2
