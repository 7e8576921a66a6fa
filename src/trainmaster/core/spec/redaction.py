"""Cover secrets, by the name of a variable and by value.

A variable whose name says so is secret, whatever its value, and so is one whose value has the form of a secret: a URL with a password, or
with a token in place of a user; a signature in a URL's query; a token of a service that marks its tokens; a JWT; a private key; or, in a
longer text, the value of a secret name (`token=x`, `password: x`, `--api-key x`, a header), or an argument that a known tool takes as a
secret (`tool_secrets`). A name is read word by word, without the
numbers that words end with (`is_secret`); `docs/guides/secrets.md` publishes the rule. A secret value is redacted wherever it turns up in
our own text, in any writing (`normal_form`), if it has `SHORTEST` characters or more: a shorter one would hide half of every text, and is
redacted by name alone.

Texts come from programs too, so each pattern takes time in proportion to the text: repetitions are possessive or bounded, and a value is
read only after its name.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainmaster.core.spec.normal_form import Known
from trainmaster.core.spec.tool_secrets import secret_arguments, secret_spans

_SECRET_WORDS = frozenset(
    ["TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSPHRASES", "CREDENTIAL", "CREDENTIALS",
     "CREDS", "AUTH", "AUTHORIZATION", "BEARER", "APIKEY", "APIKEYS", "ACCESSKEY", "PRIVATEKEY", "SECRETKEY", "PASSCODE", "PASSCODES",
     "COOKIE", "COOKIES", "WEBHOOK", "WEBHOOKS", "JWT", "DSN"]
)  # fmt: skip
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE", "TOKEN", "SECRET", "AUTH")  # of a word: PGPASSWORD, APITOKEN
_SECRET_KEYS = frozenset(
    ["API", "ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "ENCRYPTION", "SIGNING", "MASTER"]
)  # before KEY, anywhere
_SECRET_LAST = frozenset(
    ["PASS", "PWD", "PW", "PAT", "KEY", "KEYS"]
)  # last of several words: DB_PASS, MYSQL_PWD, DB_PW, AZURE_STORAGE_KEY
_LAST_ENDINGS = ("PASS", "PWD", "PW", "KEY")  # of a last word: DBPASS, MASTERKEY
_SECRET_AT_THE_END = ("_SAS", "_CONNECTION_STRING", "_CONN_STR")  # after "_"
# Before KEY, as a word or within it. The last ones are English words: MONKEY.
_HARMLESS_KEYS = frozenset(
    ["PUBLIC", "PRIMARY", "FOREIGN", "PARTITION", "SORT", "CACHE", "GROUP", "ROW", "INDEX", "UNIQUE", "JOIN", "ORDER", "IMAGE", "TEXT",
     "LABEL", "INPUT", "OUTPUT", "FEATURE", "TARGET", "METRIC", "RANDOM", "RNG", "PRNG", "TOPOLOGY", "SUCH", "MISSING", "HOT", "SUB", "PUB",
     "MON", "DON", "TUR", "HOC", "JOC", "WHIS"]
)  # fmt: skip
# Before PASS and PWD
_HARMLESS_PASSES = frozenset(
    ["FORWARD", "BACKWARD", "LOW", "HIGH", "BAND", "ALL", "FIRST", "SECOND", "SINGLE", "MULTI", "ONE", "TWO", "BY", "COM", "ENCOM", "TRES",
     "SUR", "OVER", "UNDER", "OLD"]
)  # fmt: skip
_VOCABULARY = frozenset(
    ["PAD", "EOS", "BOS", "UNK", "MASK", "SEP", "CLS", "SPECIAL", "IMAGE", "START", "STOP", "END"]
)  # before TOKEN: one of a language model
_AMOUNTS = frozenset(
    ["MAX", "MIN", "NUM", "N", "TOTAL", "PER"]
)  # with TOKENS, which is then a number of them: MAX_TOKENS; anything else is as secret as without (MAX_API_KEY)
_AMOUNTS_LAST = frozenset(["COUNT", "LEN", "LENGTH", "SIZE", "LIMIT", "TTL"])  # at the end: PASSWORD_LENGTH
_PLACES = frozenset(
    ["FILE", "PATH", "DIR", "DIRECTORY", "LOCATION", "SOCK", "NAME"]
)  # at the end: where a secret is, and how it is called, are not secret
_CAMEL = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # hfToken
# Keys of Hadoop: most of the default of hadoop.security.sensitive-config-keys (core-default.xml, Hadoop 3.4), and S3A's.
_HADOOP = re.compile(
    r"secret$|password$|\.pass$|keypassword$|credential$|oauth.*(secret|password|token)|fs\.azure\.account\.key|\.sas\."
    r"|(private|secret|access|api)[._-]?key$|api[._-]?token$"
    r"|fs\.s3.*(secret|access|encryption)[.-]?key|fs\.s3.*session[.-]?token",
    re.IGNORECASE,
)
_DOTTED_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE", "TOKEN", "SECRET")  # of any other name with dots: my.token
_SECRETS_IN_URLS = (  # (what stands before it)(the secret)
    re.compile(
        r"(https?://)([^\s/?#:]+)(?=(?::(?:x-oauth-basic)?)?@)", re.IGNORECASE
    ),  # a token for a user: GitHub's, Sentry's
    re.compile(r"(:/{1,2}[^\s/?#@:]*:)([^\s/?#]+)(?=@)"),  # a password, which may hold "@"; paths lose a "/"
)
# Tokens of services that mark theirs: (the mark, the rest), as the services document them
_MARKED = (
    ("gh[pousr]_", "[A-Za-z0-9]{30,}"), ("github_pat_", r"\w{22,}"), ("glpat-", r"[\w-]{20,}"), ("hf_", "[A-Za-z]{30,}"),
    ("npm_", "[A-Za-z0-9]{36}"), ("pypi-", r"[\w-]{50,}"), ("xox[abeoprs]-", "[A-Za-z0-9-]{10,}"), ("xapp-", "[A-Za-z0-9-]{10,}"),
    ("AIza", r"[\w-]{35}"), ("[sr]k_(?:live|test)_", "[A-Za-z0-9]{16,}"), ("sk-(?:proj|ant|or|svcacct|admin)-", r"[\w-]{20,}"),
    ("sk-", "[A-Za-z0-9]{32,}"), (r"ya29\.", r"[\w-]{20,}"), ("A(?:K|S)IA", "[A-Z0-9]{16}(?![A-Za-z0-9])"),
    (r"SG\.", r"[\w-]{16,}\.[\w-]{16,}"), ("dapi", "[0-9a-f]{32}"),
    ("nvapi-", r"[\w-]{20,}"), ("gsk_", "[A-Za-z0-9]{20,}"), ("r8_", "[A-Za-z0-9]{20,}"), ("do[opr]_v1_", r"\w{20,}"),
    (r"hv[sbr]\.", r"[\w-]{20,}"), ("dckr_[a-z]{2,4}_", r"[\w-]{20,}"), ("tskey-[a-z]{2,16}-", "[A-Za-z0-9-]{10,}"),
    ("lin_(?:api|oauth)_", "[A-Za-z0-9]{20,}"), ("shp(?:at|ca|pa|ss)_", "[A-Za-z0-9]{20,}"), ("AGE-SECRET-KEY-", "[A-Za-z0-9]{20,}"),
)  # fmt: skip
_HOOKS = re.compile(
    r"(https://(?:hooks\.slack\.com/(?:services|workflows)/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]+\.webhook\.office\.com/webhookb2/|api\.telegram\.org/bot))([^\s\"']+)"
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(.+?)(?=-----END|\Z)", re.DOTALL)
# In queries of URLs and in connection strings: names that are secret only there.
_ASSIGNED = re.compile(
    r"((?<![A-Za-z])(?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|accountkey|sharedaccesskey|sharedaccesssignature"
    r"|(?<=;)pwd|(?<=; )pwd)=)([^\s&;\"']+)",
    re.IGNORECASE,
)
_JWT = re.compile(r"(?<![\w-])((?>[\w-]*?eyJ))([\w-]{8,}+\.eyJ[\w-]{8,}\.[\w-]*)")
_HEADER = re.compile(
    r"((?<![A-Za-z])(?:authorization|(?:set-)?cookie)\\*[\"']?[ \t]{0,9}:[ \t]{0,9}\\*[\"']?)([^\r\n\"']+)",
    re.IGNORECASE,
)  # to the end of its line, or of the quotes around it
_SCHEME = re.compile(
    r"((?<![A-Za-z])authorization=[\"']?)((?:bearer|basic|token|digest|apikey|negotiate)[ \t]+[^\s\"']+)", re.IGNORECASE
)
_SSHPASS = re.compile(r"(\bsshpass\s{1,9}-p\s{0,9})(\S+)")
_CURL = re.compile(
    r"((?<=\s)(?:-u|-U|--user|--proxy-user)(?:\s{1,9}|=)?[\"']?[^\s:\"']{1,256}:)([^\s\"'/][^\s\"']*)"
)  # of a text with "curl": elsewhere -u is followed by a user and a group
_FORMS = (
    *_SECRETS_IN_URLS, _ASSIGNED, _HOOKS, _PRIVATE_KEY, _JWT, _HEADER, _SCHEME, _SSHPASS,
    *(re.compile(f"(?<![A-Za-z0-9])({mark})({rest})") for mark, rest in _MARKED),
)  # fmt: skip
# A name and what joins it to its value, but not the value: --api-key=x, --api-key x, API_KEY=x, api_key = x, "api_key": "x"
_NAMED = re.compile(
    r"(?<![\w.-])(?:(--?[A-Za-z][\w.-]*+)(\\*+[\"']|)(=(?!=)|[ \t]{0,9}+:(?!:)[ \t]{0,9}+|(?:[ \t]|\\\n){1,99}+)"
    r"|([A-Za-z_][\w.-]*+)(\\*+[\"']|)(=(?!=)>?|[ \t]{1,9}+=>?[ \t]{1,9}+|[ \t]{0,9}+:(?!:)[ \t]{0,9}+))"
)
_QUOTED = (
    r"[$bBfFrRuU]{0,2}(?:(\\+)([\"']).*?(?<!\\)\2\3|\"(?:[^\"\\]|\\[\s\S])*+\"|'(?:[^'\\]|\\[\s\S])*+'|\"[^\"]*\"|'[^']*')"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s;|&\"',:)}\]])*+"  # what a shell joins to it
)
_VALUE = re.compile(rf"(?P<quoted>{_QUOTED})|(?:\\[\s\S]|[^\s;|&\\])+")
_VALUE_AFTER_COLON = re.compile(rf"(?P<quoted>{_QUOTED})|\S+")
_BORDER = re.compile(r"\\*[\"']")
_SEVERAL_WORDS = re.compile("[_-]|[a-z][A-Z]")
_IN_QUERIES = frozenset(["key", "sig", "signature", "code", "pass", "pw", "pwd"])  # secret there: ?key=x
_NO_SECRETS = frozenset(["true", "false", "none", "null", "yes", "no", "on", "off", ""])
_NUMBER = re.compile(r"[-+]?[\d.,_]+(?:e[-+]?\d+)?[kmbt]?", re.IGNORECASE)
_LONGEST = 128  # characters of a name that are read, from its end
_SHORT = 256  # characters of a text whose redaction is remembered
SHORTEST = 8  # characters of a value that is redacted wherever it stands
REDACTED = "[redacted]"
ALL_ROLES = ""  # in place of a role's name: the secrets of every role


def is_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable's value is secret: its name says so, or the value's form does."""
    return _is_secret_name(name[-_LONGEST:]) or has_secret(value)


def has_secret(text: str) -> bool:
    """Tell whether a text has the form of a secret, or has one in it."""
    return any(pattern.search(text) for pattern in _forms(text)) or any(
        next(find(text), None) is not None for find in (_assigned, secret_spans)
    )


@functools.lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    words = _words(name.rpartition(".")[2])
    if "." in name and _HADOOP.search(name):
        return True
    if not words or words[-1] in _PLACES | _AMOUNTS_LAST:
        return False
    pairs = [*itertools.pairwise(["", *words])]
    counts = not _AMOUNTS.isdisjoint(_words(name.replace(".", "_")))
    if "." in name:
        return words[-1].endswith(_DOTTED_ENDINGS) and _is_secret_word(*pairs[-1], counts)
    before, last = pairs[-1]
    return (
        any(_is_secret_word(*pair, counts) for pair in pairs)
        or any(word in _SECRET_KEYS and after.startswith("KEY") for word, after in pairs)
        or (len(words) > 1 and last in _SECRET_LAST and before not in _harmless_before(last))
        or any(last.endswith(end) and _is_glued(last, end) for end in _LAST_ENDINGS)
        or "".join(words).endswith("CONNECTIONSTRING") or "_".join(["", *words]).endswith(_SECRET_AT_THE_END)
    )  # fmt: skip


def _words(name: str) -> list[str]:
    """Return the words of a name, in capitals, without the digits at their ends."""
    parts = re.split(r"[_-]+", _CAMEL.sub("_", name) if not name.isupper() else name)
    return [word for part in parts if (word := part.upper().rstrip("0123456789"))]


def _is_secret_word(before: str, word: str, counts: bool) -> bool:
    """Tell whether a word makes a name secret. `counts`: the name says that it is an amount."""
    if word.startswith("TOKEN") and (before in _VOCABULARY or (counts and word == "TOKENS")):
        return False
    if word in _SECRET_WORDS:
        return True
    return word.endswith(_SECRET_ENDINGS) and word.removesuffix("TOKEN") not in _VOCABULARY


def _is_glued(word: str, ending: str) -> bool:
    """Tell whether a word is another one and a secret ending: DBPASS, but not PASS or BYPASS."""
    before = word.removesuffix(ending)
    return before not in _harmless_before(ending) | {""}


def _harmless_before(ending: str) -> frozenset[str]:
    return _HARMLESS_KEYS if ending.startswith("KEY") else _HARMLESS_PASSES


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
    """Redact the secrets in plain data: texts under a secret name, and `values` anywhere in a text, in any writing."""
    return _redacted(data, known(tuple(values)))


@functools.lru_cache(8)
def known(values: tuple[str, ...]) -> Known:
    """Return the values as they are looked for in what programs write: whole, line by line, in any writing. Short ones are left out."""
    pieces = {piece for value in values for piece in _pieces(value) if len(piece) >= SHORTEST}
    return Known(piece.encode(errors="surrogateescape") for piece in pieces)


def _pieces(value: str) -> Iterator[str]:
    """Yield a value, its lines, and where it is a JSON object also its secret texts: programs show those as they are."""
    yield from (value, value.strip())
    if "\n" in value or "\r" in value:
        # The border of a key is public, and is what marks another key.
        yield from (line for text in value.splitlines() if not (line := text.strip()).startswith("-----"))
    if value.lstrip().startswith("{"):
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError):
            return
        for name, text in fields.items():
            if isinstance(text, str) and is_secret(name, text):
                yield from _pieces(text)


def _redacted(data: Any, values: Known) -> Any:
    if isinstance(data, str):
        data = _without(data, values) if values and len(data) >= SHORTEST else data
        return _redact_short_text(data) if len(data) <= _SHORT else redact_text(data)
    if isinstance(data, Mapping):
        return {
            key: REDACTED if _is_secret_value(key, element) else _redacted(element, values)
            for key, element in data.items()
        }
    if isinstance(data, list | tuple):
        has_curl = any(isinstance(element, str) and element.rpartition("/")[2] == "curl" for element in data)
        logins = ("-u", "-U", "--user", "--proxy-user") if has_curl else ()
        after_option = [False, *(element in logins or _is_secret_option(element) for element in data)]
        words = [element if isinstance(element, str) else "" for element in data]
        arguments = {number: words[number][:offset] + REDACTED for number, offset in secret_arguments(words)}
        return [
            REDACTED if hides else arguments.get(number) or _redacted(element, values)
            for number, (hides, element) in enumerate(zip(after_option, data, strict=False))
        ]
    return data


def _without(text: str, values: Known) -> str:
    """Redact the values in a text."""
    way = "surrogateescape"
    try:
        data = text.encode(errors=way)
    except UnicodeEncodeError:  # half of a character, which no file holds
        way = "surrogatepass"
        data = text.encode(errors=way)
    shown = values.replaced(data, REDACTED.encode())
    return text if shown == data else shown.decode(errors=way)


@functools.lru_cache(16384)  # a status has the same texts again and again
def _redact_short_text(text: str) -> str:
    return redact_text(text)


def redact_text(text: str) -> str:
    """Redact what has the form of a secret in a text, and the values of secret names in it."""
    if len(text) < SHORTEST:
        return text
    for pattern in _forms(text):
        text = pattern.sub(lambda match: match[1] + REDACTED, text)
    return _without_spans(_without_spans(text, secret_spans), _assigned)


def _without_spans(text: str, find: Callable[[str], Iterator[tuple[int, int]]]) -> str:
    parts, at = [], 0
    for start, end in find(text):
        parts += [text[at:start], REDACTED]
        at = end
    return "".join([*parts, text[at:]])


def _forms(text: str) -> Iterable[re.Pattern[str]]:
    return (*_FORMS, _CURL) if "curl" in text else _FORMS


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the values of secret names in a text begin and end."""
    at = 0
    while named := _NAMED.search(text, at):
        at = named.end()
        name, quote, joint = named[1] or named[4], named[2] or named[5], named[3] or named[6]
        if not _is_secret_here(text, named.start(), name, quote, joint):
            continue
        value = (_VALUE_AFTER_COLON if ":" in joint else _VALUE).match(text, at)
        if value is None or (joint.isspace() and value[0].startswith("--")):
            continue
        end = value.end() if value["quoted"] else at + len(value[0].rstrip("\"'`)}>,"))
        if _is_no_secret(name, text[at:end]):
            continue
        border = _BORDER.match(value[0]) if quote and value["quoted"] else None
        width = len(border[0]) if border and value[0].endswith(border[0]) else 0  # JSON stays JSON
        yield at + width, end - width
        at = end


def _is_secret_here(text: str, start: int, name: str, quote: str, joint: str) -> bool:
    """Tell whether a name is secret where it stands."""
    if joint == ":" and not (quote or _SEVERAL_WORDS.search(name.lstrip("-"))):  # worker:0
        return False
    if joint == "=" and text[max(0, start - 2) : start][-1:] in ("?", "&") and text[start - 2 : start] != "&&":
        return name.lower() in _IN_QUERIES or is_secret(name)
    return _is_secret_name(name.lstrip("-")[-_LONGEST:])


def _is_no_secret(name: str, value: str) -> bool:
    """Tell whether a value is harmless: nothing, a switch, `...`, an amount (`tokens: 4096`), or `{` of names that are read in turn."""
    word, name = value.strip("\"'").lower(), name.lower()
    is_amount = (name.endswith("s") or "tokens" in name) and _NUMBER.fullmatch(word) is not None
    has_names = word.startswith("{") and ":" in word
    return word in _NO_SECRETS or word.startswith("...") or is_amount or has_names


def _is_secret_option(element: Any) -> bool:
    """Tell whether the next element of a list is the value of this one: `[--api-key, x]`."""
    return (
        isinstance(element, str) and element.startswith("-") and "=" not in element and is_secret(element.lstrip("-"))
    )


def _is_secret_value(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and isinstance(key, str) and is_secret(key)
