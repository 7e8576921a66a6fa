"""Who may read pages: codes, cookies, other sites, host names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from trainmaster.web.access import Access, Codes, ProxyHeader, Tokens

HOST = "127.0.0.1:8470"
BROWSER = {"accept": "text/html", "host": HOST}


@attrs.frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def cookie(self) -> str:
        return self.headers["set-cookie"].partition(";")[0]


async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    reader = Request(scope).state.reader if not scope["path"].startswith("/static/") else None
    await PlainTextResponse(f"{scope['path']} {reader and reader.user} {reader and reader.may_act}")(
        scope, receive, send
    )


def ask(
    access: Access, path: str, method: str = "GET", client: str = "127.0.0.1", body: str = "", **headers: str
) -> Answer:
    """One request. `_` in a header's name stands for `-`."""
    path, _, query = path.partition("?")
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in {**BROWSER, **headers}.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": raw, "client": (client, 5),
             "scheme": "http", "server": ("127.0.0.1", 8470), "root_path": "", "state": {}}  # fmt: skip
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    asyncio.run(access(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return Answer(messages[0]["status"], answered, b"".join(message["body"] for message in messages[1:]).decode())


@attrs.frozen
class User:
    """A `tm ui` of one user, with the codes that its terminal shows."""

    access: Access
    codes: list[str]


def page(target: str, problem: str) -> str:
    return f"sign in to {target}: {problem}"


@pytest.fixture
def user() -> User:
    codes: list[str] = []
    access = Access(application, page, Codes("ada", codes.append), hosts=[HOST, "localhost:8470"], may_act=True)
    return User(access, codes)


def test_a_code_opens_one_session_and_the_next_code_is_announced(user: User) -> None:
    assert ask(user.access, "/").status == 401
    answer = ask(user.access, f"/jobs/a/?code={user.codes[0]}&page=2")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/a/?page=2")
    assert len(user.codes) == 2
    assert ask(user.access, "/", cookie=answer.cookie).text == "/ ada True"
    assert ask(user.access, f"/?code={user.codes[0]}").status == 401
    assert len(user.codes) == 2
    assert ask(user.access, f"/?code={user.codes[1]}").status == 303


def test_the_cookie_is_for_this_site_alone_and_out_of_reach_of_scripts(user: User) -> None:
    header = ask(user.access, f"/?code={user.codes[0]}").headers["set-cookie"].lower()
    assert "httponly" in header
    assert "samesite=strict" in header
    assert "domain" not in header
    other = Access(application, page, Codes("ada", lambda code: None))
    assert other.sessions.cookie != user.access.sessions.cookie  # ports of one host share cookies


def test_an_old_address_in_a_browser_that_has_signed_in_uses_no_code(user: User) -> None:
    first = ask(user.access, f"/?code={user.codes[0]}")
    again = ask(user.access, f"/?code={user.codes[0]}", cookie=first.cookie)
    assert (again.status, again.headers["location"], len(user.codes)) == (303, "/", 2)


def test_a_look_ahead_uses_no_code(user: User) -> None:
    assert ask(user.access, f"/?code={user.codes[0]}", "HEAD").status == 401
    assert len(user.codes) == 1


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "/%0d%0aSet-Cookie: x=1/", "/\r\nx: y"])
def test_signing_in_leads_to_no_other_site(user: User, path: str) -> None:
    answer = ask(user.access, f"{path}?code={user.codes[0]}")
    location = answer.headers["location"]
    assert answer.status == 303
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "\n" not in location
    form = urlencode({"secret": user.codes[1], "next": path})
    location = ask(user.access, "/sign-in", "POST", body=form).headers["location"]
    assert not location.startswith(("//", "/\\"))


def test_a_code_may_be_put_into_the_form(user: User) -> None:
    assert ask(user.access, "/sign-in", "POST", body=urlencode({"secret": "wrong", "next": "/"})).status == 401
    answer = ask(user.access, "/sign-in", "POST", body=urlencode({"secret": user.codes[0], "next": "/jobs/b/"}))
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/b/")


def test_a_program_gets_no_page_but_an_error(user: User) -> None:
    answer = ask(user.access, "/api/v1/jobs", accept="application/json")
    assert (answer.status, answer.text) == (401, '{"error":"sign in first"}')


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1:9999", ""])
def test_another_host_name_is_refused(user: User, host: str) -> None:
    session = ask(user.access, f"/?code={user.codes[0]}").cookie
    assert ask(user.access, "/", cookie=session, host=host).status == 421
    assert ask(user.access, "/static/style.css", host=host).status == 421


def test_requests_that_another_site_sends_are_refused(user: User) -> None:
    session = {"cookie": ask(user.access, f"/?code={user.codes[0]}").cookie}
    assert ask(user.access, "/jobs/a/actions/kill", "POST", **session, origin="https://evil.example").status == 403
    assert ask(user.access, "/jobs/a/actions/kill", "POST", **session, origin="null").status == 403
    assert ask(user.access, "/jobs/a/actions/kill", "POST", **session, sec_fetch_site="same-site").status == 403
    assert (
        ask(
            user.access,
            "/jobs/a/actions/kill",
            "POST",
            **session,
            origin=f"http://{HOST}",
            sec_fetch_site="same-origin",
        ).status
        == 200
    )
    assert ask(user.access, "/jobs/a/", **session, sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    assert ask(user.access, "/jobs/a/", **session, sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


def test_a_link_on_another_site_opens_the_page_by_a_request_of_our_own(user: User) -> None:
    answer = ask(user.access, "/jobs/a/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert (answer.status, 'http-equiv="refresh"' in answer.text) == (200, True)
    assert ask(user.access, "/jobs/a/", sec_fetch_site="same-origin", sec_fetch_mode="navigate").status == 401


def test_every_answer_has_the_headers_of_a_careful_page(user: User) -> None:
    session = ask(user.access, f"/?code={user.codes[0]}").cookie
    for answer in (
        ask(user.access, "/"),
        ask(user.access, "/", cookie=session),
        ask(user.access, "/", host="evil.example"),
    ):
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_a_team_signs_in_by_tokens_and_only_reads() -> None:
    access = Access(application, page, Tokens({"s3cret": "ada", "0ther": "ben"}), secure=True)
    answer = ask(access, "/sign-in", "POST", body=urlencode({"secret": "0ther"}))
    assert "secure" in answer.headers["set-cookie"].lower()
    assert ask(access, "/", cookie=answer.cookie).text == "/ ben False"
    assert ask(access, "/", authorization="Bearer s3cret").text == "/ ada False"
    assert ask(access, "/", authorization="Bearer wrong").status == 401
    assert ask(access, "/jobs/a/actions/kill", "POST", cookie=answer.cookie).status == 405
    assert ask(access, "/?code=s3cret").status == 401  # no token in an address


def test_a_header_names_the_user_where_a_trusted_proxy_sends_it() -> None:
    access = Access(application, page, header=ProxyHeader("x-user", ["10.0.0.1"]))
    assert ask(access, "/", client="10.0.0.1", x_user="ada").text == "/ ada False"
    assert ask(access, "/", client="::ffff:10.0.0.1", x_user="ada").text == "/ ada False"
    assert ask(access, "/", client="10.0.0.2", x_user="ada").status == 401
    assert ask(access, "/", client="10.0.0.1").status == 401


def test_a_request_of_two_lengths_is_refused_and_ends_its_connection() -> None:
    access = Access(application, page, header=ProxyHeader("x-user", ["127.0.0.1"]))
    answer = ask(access, "/", x_user="ada", content_length="5", transfer_encoding="chunked")
    assert (answer.status, answer.headers["connection"]) == (400, "close")
