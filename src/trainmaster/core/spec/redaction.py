"""Cover secrets, by the name of a variable and by value.

A variable whose name says so is secret, whatever its value, and so is one whose value has the form of a secret: a URL with a password, or
with a token in place of a user; a signature in a URL's query; a token of a service that marks its tokens; a JWT; a private key. A name is
read word by word, without the numbers that words end with (`is_secret`); `docs/guides/secrets.md` publishes the rule. A secret value is
redacted wherever it turns up in our own text, if it has `SHORTEST` characters or more: a shorter one would hide half of every text, and is
redacted by name alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

_SECRET_WORDS = frozenset(
    ["TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSPHRASES", "CREDENTIAL", "CREDENTIALS",
     "CREDS", "AUTH", "APIKEY", "APIKEYS", "ACCESSKEY", "PRIVATEKEY", "SECRETKEY", "AUTHTOKEN", "ACCESSTOKEN", "PASSCODE",
     "PASSCODES", "COOKIE", "COOKIES", "WEBHOOK", "WEBHOOKS", "JWT", "DSN"]
)  # fmt: skip
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE")  # of a word: PGPASSWORD
_SECRET_KEYS = frozenset(
    ["API", "ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "ENCRYPTION", "SIGNING", "MASTER"]
)  # before KEY, anywhere
_SECRET_LAST = frozenset(
    ["PASS", "PWD", "PW", "PAT", "KEY", "KEYS"]
)  # last of several words: DB_PASS, MYSQL_PWD, DB_PW, AZURE_STORAGE_KEY
_HARMLESS_KEYS = frozenset(
    ["PUBLIC", "PRIMARY", "FOREIGN", "PARTITION", "SORT", "CACHE", "GROUP", "ROW", "INDEX"]
)  # before a last KEY
_AMOUNTS = frozenset(
    ["MAX", "MIN", "NUM", "N", "TOTAL", "PER"]
)  # with TOKENS, which is then a number of them: MAX_TOKENS; anything else is as secret as without (MAX_API_KEY)
_AMOUNTS_LAST = frozenset(["COUNT", "LEN", "LENGTH", "SIZE", "LIMIT", "TTL"])  # at the end: PASSWORD_LENGTH
_PLACES = frozenset(
    ["FILE", "PATH", "DIR", "DIRECTORY", "LOCATION", "SOCK"]
)  # at the end: the name of a file is not a secret
# Keys of Hadoop: most of the default of hadoop.security.sensitive-config-keys (core-default.xml, Hadoop 3.4), and S3A's.
_HADOOP = re.compile(
    r"secret$|password$|\.pass$|keypassword$|credential$|oauth.*(secret|password|token)|fs\.azure\.account\.key|\.sas\."
    r"|(private|secret|access|api)[._-]?key$|api[._-]?token$"
    r"|fs\.s3.*(secret|access|encryption)[.-]?key|fs\.s3.*session[.-]?token",
    re.IGNORECASE,
)
_SECRETS_IN_URLS = (  # (what stands before it)(the secret)
    re.compile(
        r"(https?://)([^\s/?#:]+)(?=(?::(?:x-oauth-basic)?)?@)", re.IGNORECASE
    ),  # a token for a user: GitHub's, Sentry's
    re.compile(r"(://[^\s/?#@:]*:)([^\s/?#]+)(?=@)"),  # a password, which may hold "@"
)
# Tokens of services that mark theirs: (the mark, the rest), as the services document them
_MARKED = (
    ("gh[pousr]_", "[A-Za-z0-9]{30,}"), ("github_pat_", r"\w{22,}"), ("glpat-", r"[\w-]{20,}"), ("hf_", "[A-Za-z]{30,}"),
    ("npm_", "[A-Za-z0-9]{36}"), ("pypi-", r"[\w-]{50,}"), ("xox[abeoprs]-", "[A-Za-z0-9-]{10,}"), ("AIza", r"[\w-]{35}"),
    ("[sr]k_(?:live|test)_", "[A-Za-z0-9]{16,}"), ("sk-(?:proj|ant|or)-", r"[\w-]{20,}"), ("sk-", "[A-Za-z0-9]{32,}"),
    (r"ya29\.", r"[\w-]{20,}"), ("A(?:K|S)IA", "[A-Z0-9]{16}(?![A-Za-z0-9])"), (r"SG\.", r"[\w-]{16,}\.[\w-]{16,}"),
    ("dapi", "[0-9a-f]{32}"), ("eyJ", r"[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
)  # fmt: skip
_HOOKS = re.compile(
    r"(https://(?:hooks\.slack\.com/(?:services|workflows)/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]+\.webhook\.office\.com/webhookb2/|api\.telegram\.org/bot))([^\s\"']+)"
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(.+?)(?=-----END|\Z)", re.DOTALL)
# In queries of URLs, connection strings and headers; names beside those that `is_secret` knows.
_ASSIGNED = re.compile(
    r"((?<![A-Za-z])(?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|accountkey|sharedaccesskey|sharedaccesssignature"
    r"|password|pwd|client_secret|access_token|refresh_token|id_token)=)([^\s&;\"']+)",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)([^\s\"']+)", re.IGNORECASE)
_FORMS = (
    *_SECRETS_IN_URLS, _ASSIGNED, _HOOKS, _PRIVATE_KEY, _HEADER,
    *(re.compile(f"(?<![A-Za-z0-9])({mark})({rest})") for mark, rest in _MARKED),
)  # fmt: skip
# An option or a variable of a command line, with its value: --api-key=x, --api-key x, API_KEY=x
_GIVEN = re.compile(
    r"((?:(?<=\s)|^)(?:--?([A-Za-z][\w.-]*)(?:=|\s+)|([A-Za-z_]\w*)=))(\"[^\"]*\"|'[^']*'|[^\s;|&-][^\s;|&]*)"
)
SHORTEST = 8  # characters of a value that is redacted wherever it stands
REDACTED = "[redacted]"
ALL_ROLES = ""  # in place of a role's name: the secrets of every role


def is_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable's value is secret: its name says so, or the value's form does."""
    if any(pattern.search(value) for pattern in _FORMS):
        return True
    if "." in name:
        return _HADOOP.search(name) is not None
    words = [word for part in re.split(r"[_-]+", name.upper()) if (word := part.rstrip("0123456789"))]
    if not words or words[-1] in _PLACES | _AMOUNTS_LAST:
        return False
    harmless = {"TOKENS"} if not _AMOUNTS.isdisjoint(words) else set()
    return (
        any(word in _SECRET_WORDS - harmless or word.endswith(_SECRET_ENDINGS) for word in words)
        or any(word in _SECRET_KEYS and after.startswith("KEY") for word, after in itertools.pairwise(words))
        or (len(words) > 1 and words[-1] in _SECRET_LAST and words[-2] not in _HARMLESS_KEYS)
    )


def passwords_in_urls(text: str) -> list[str]:
    """Return the passwords and tokens of the URLs in a text."""
    return [url[2] for pattern in _SECRETS_IN_URLS for url in pattern.finditer(text)]


def secrets_of(secrets: Mapping[str, Mapping[str, str]], role: str) -> dict[str, dict[str, str]]:
    """Select the values that a container of `role` gets: those of every role, and its own. No container gets more.

    `secrets` and the result: role, or `ALL_ROLES` -> name -> value.
    """
    return {group: dict(secrets[group]) for group in (ALL_ROLES, role) if group in secrets}


def secret_names_of_others(secrets: Mapping[str, Mapping[str, str]], role: str) -> set[str]:
    """Return the names of secrets that other roles have and `role` has not."""
    own = {name for values in secrets_of(secrets, role).values() for name in values}
    return {name for values in secrets.values() for name in values} - own


def redact(data: Any, values: Iterable[str] = ()) -> Any:
    """Redact the secrets in plain data: texts under a secret name, and `values` anywhere in a text."""
    long = sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
    return _redacted(data, long)


def _redacted(data: Any, values: list[str]) -> Any:
    if isinstance(data, str):
        for value in values:
            data = data.replace(value, REDACTED)
        return redact_text(data)
    if isinstance(data, Mapping):
        return {
            key: REDACTED if _is_secret_value(key, element) else _redacted(element, values)
            for key, element in data.items()
        }
    if isinstance(data, list | tuple):
        after_option = [False, *(_is_secret_option(element) for element in data)]
        return [
            REDACTED if hides else _redacted(element, values)
            for hides, element in zip(after_option, data, strict=False)
        ]
    return data


def redact_text(text: str) -> str:
    """Redact what has the form of a secret in a text, and the values of secret options and variables of a command line."""
    if len(text) < SHORTEST:
        return text
    for pattern in _FORMS:
        text = pattern.sub(lambda match: match[1] + REDACTED, text)
    return _GIVEN.sub(lambda match: match[1] + REDACTED if is_secret(match[2] or match[3]) else match[0], text)


def _is_secret_option(element: Any) -> bool:
    """Tell whether the next element of a list is the value of this one: `[--api-key, x]`."""
    return (
        isinstance(element, str) and element.startswith("-") and "=" not in element and is_secret(element.lstrip("-"))
    )


def _is_secret_value(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and isinstance(key, str) and is_secret(key)
