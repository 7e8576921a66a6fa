"""Cover secrets, by the name of a variable and by value.

A variable whose name says so is secret, whatever its value, and so is one whose value is a URL with a password, or with a token in place of
a user. A name is read word by word, without the numbers that words end with (`is_secret`); `docs/guides/secrets.md` publishes the rule. A
secret value is redacted wherever it turns up in our own text, if it has `SHORTEST` characters or more: a shorter one would hide half of
every text, and is redacted by name alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

_SECRET_WORDS = frozenset(
    ["TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSPHRASES", "CREDENTIAL", "CREDENTIALS",
     "CREDS", "AUTH", "APIKEY", "APIKEYS", "ACCESSKEY", "PRIVATEKEY", "SECRETKEY", "AUTHTOKEN", "ACCESSTOKEN"]
)  # fmt: skip
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE")  # of a word: PGPASSWORD
_SECRET_KEYS = frozenset(
    ["API", "ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "ENCRYPTION", "SIGNING", "MASTER"]
)  # before KEY, anywhere
_SECRET_LAST = frozenset(
    ["PASS", "PWD", "PAT", "KEY", "KEYS"]
)  # last of several words: DB_PASS, MYSQL_PWD, AZURE_STORAGE_KEY
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
SHORTEST = 8  # characters of a value that is redacted wherever it stands
REDACTED = "[redacted]"
ALL_ROLES = ""  # in place of a role's name: the secrets of every role


def is_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable's value is secret: its name says so, or the value is a URL with a password or token."""
    if any(pattern.search(value) for pattern in _SECRETS_IN_URLS):
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
        for pattern in _SECRETS_IN_URLS:
            data = pattern.sub(lambda url: url[1] + REDACTED, data)
        return data
    if isinstance(data, Mapping):
        return {
            key: REDACTED if _is_secret_value(key, element) else _redacted(element, values)
            for key, element in data.items()
        }
    if isinstance(data, list | tuple):
        return [_redacted(element, values) for element in data]
    return data


def _is_secret_value(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and isinstance(key, str) and is_secret(key)
