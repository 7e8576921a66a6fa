"""Make the template of a program that has not run in this container yet, while its gang runs on without it.

All programs of a gang wait for the last one that begins: a newcomer that imports PyTorch first keeps the others waiting for seconds. So the
agent of a spare puts in place what does not depend on the generation, and has a template do the imports that the program surely does. The
first attempt starts in a fork of it. Where that cannot be, or an input must be there first, the program starts cold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.agent.attempt import faults
from trainmaster.agent.attempt.environ import environ
from trainmaster.agent.attempt.failure import words
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.program import Launch
from trainmaster.core.machine.orders import order_fields


async def warm_up(place: Place, order: Mapping[str, Any], attempt: int) -> None:
    """Make the template, and report how the program will start. `attempt`: the one that will be prepared next."""
    try:
        why = await _make(place, order_fields(order), attempt)
    except Exception as error:  # noqa: BLE001  the attempt itself will meet it, and say so
        why = words(error)
    place.report("warmed-up", attempt, why=f"cold: {why}" if why else "warm")


async def _make(place: Place, order: Mapping[str, Any], attempt: int) -> str:
    """Return why there is no template, "" where there is one."""
    from trainmaster.agent.warm.keeper import Keeper

    site, threads = place.workplace, place.threads
    await threads.run(place.settle_address)
    await threads.run(place.settle_environment)
    await threads.run(site.furnish, order)
    if materials := {key: order[key] for key in ("archives", "cache") if order[key]}:
        await threads.run(place.materials.provide, materials, site.cwd)
    variables = environ(place, attempt, order["env"], order["defaults"], {}, {}, order["threads"])
    launch = Launch(
        order["command"] if isinstance(order["command"], str) else tuple(order["command"]), site.cwd, variables, place.allowance
    )  # fmt: skip
    changing = {*order["changing"]} - {*order["env"]}
    withheld = changing | {faults.ERROR_FILE} | {name for name in variables if name.startswith("TRAINMASTER_")}
    if place.keeper is None:
        place.keeper = Keeper()
    why: str = await place.keeper.expect(launch, withheld, *place.template_room(order["warm"]))
    return why
