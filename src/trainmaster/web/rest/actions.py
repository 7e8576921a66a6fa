"""The endpoints that change something."""

from __future__ import annotations

from starlette.responses import Response

from trainmaster.core.input.feed_tokens import named_feed
from trainmaster.web.rest.call import Call
from trainmaster.web.rest.encoding import json_answer

_DONE = {"done": True}


async def kill(call: Call) -> Response:
    task, why = call.body.task, call.body.why
    await (call.acts.kill_task(task, call.by, why) if task else call.acts.kill(call.by, why))
    return json_answer(_DONE)


async def scale(call: Call) -> Response:
    await call.acts.scale(call.body.role, call.body.size, call.by)
    return json_answer(_DONE)


async def save(call: Call) -> Response:
    return json_answer({"save": await call.acts.save(call.by)})


async def renew(call: Call) -> Response:
    return json_answer(await call.acts.renew(call.body))


async def supply(call: Call) -> Response:
    feed = named_feed(call.headers.get("authorization", "").removeprefix("Bearer "))
    if feed is not None and feed != (call.body.get("role"), call.body.get("feed")):
        raise PermissionError(f"this token allows to feed {'.'.join(feed)} alone")
    return json_answer(await call.acts.supply(call.body))


async def dump(call: Call) -> Response:
    await call.acts.dump(call.body.task, call.by)
    return json_answer(_DONE)


async def signal(call: Call) -> Response:
    await call.acts.signal(call.body.task, call.body.signal, call.by)
    return json_answer(_DONE)


async def retry(call: Call) -> Response:
    return json_answer({"job": await call.acts.retry(call.by)})


async def cut(call: Call) -> Response:
    await call.acts.cut(call.body.task, call.body.seconds, call.by)
    return json_answer(_DONE)
