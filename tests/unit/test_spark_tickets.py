"""Containers on Spark get their secrets from their master, once, and never from Spark."""

from __future__ import annotations

import asyncio

import pytest

from trainmaster.client.submit.ahead import certificate_and_key
from trainmaster.engines.spark.container.entry import secrets_for
from trainmaster.engines.spark.master.tickets import Tickets
from trainmaster.engines.statuses import OUT_OF_REACH

SECRETS = {"token": "t", "secrets": {"API_KEY": "k"}, "stores": {}}


def test_a_ticket_is_worth_its_secrets_once(capsys: pytest.CaptureFixture[str]) -> None:
    certificate, key = certificate_and_key()

    async def play() -> None:
        tickets = Tickets("127.0.0.1", certificate, key)
        await tickets.open()
        ticket = tickets.ticket("worker:0", SECRETS)
        assert "k" not in str({**ticket, "number": ""}.values())
        assert await asyncio.to_thread(secrets_for, ticket, certificate) == SECRETS
        with pytest.raises(SystemExit, match="somebody has fetched the secrets of this container"):
            await asyncio.to_thread(secrets_for, ticket, certificate)
        with pytest.raises(SystemExit, match="somebody has fetched"):
            await asyncio.to_thread(secrets_for, {**ticket, "number": "guessed"}, certificate)
        await tickets.close()
        with pytest.raises(SystemExit) as away:
            await asyncio.to_thread(secrets_for, tickets.ticket("worker:0", SECRETS), certificate)
        assert away.value.code == OUT_OF_REACH

    asyncio.run(play())
    assert "the job's master is out of reach at 127.0.0.1:" in capsys.readouterr().err


def test_another_masters_certificate_is_not_trusted() -> None:
    certificate, key = certificate_and_key()
    other, _ = certificate_and_key()

    async def play() -> None:
        tickets = Tickets("127.0.0.1", certificate, key)
        await tickets.open()
        ticket = tickets.ticket("worker:0", SECRETS)
        with pytest.raises(SystemExit):
            await asyncio.to_thread(secrets_for, ticket, other)
        assert await asyncio.to_thread(secrets_for, ticket, certificate) == SECRETS, "it was not spent"
        await tickets.close()

    asyncio.run(play())
