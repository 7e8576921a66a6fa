"""Find secrets in the arguments of known tools that no name marks: `wandb login KEY`, `mysql -pPASSWORD`, `redis-cli -a PASSWORD`.

One table says where each tool takes them; lists of arguments and texts with commands are read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs


@attrs.frozen(slots=True)
class _Tool:
    """`options`: the next argument is the secret, or what follows "=". `attached`: what follows the option at once is.

    `within`: a word that must come before; `has_key`: the first argument after that word is a secret.
    """

    options: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()
    within: str = ""
    has_key: bool = False


_MYSQL, _MONGO, _LDAP = _Tool(attached=("-p",)), _Tool(options=("-p",)), _Tool(options=("-w",))
_LOGIN, _KEY = _Tool(options=("-p",), within="login"), _Tool(options=("-k",), within="login", has_key=True)
_PACKED, _SQL = _Tool(options=("-P",)), _Tool(options=("-P",), attached=("-P",))
TOOLS: Mapping[str, _Tool] = {
    **dict.fromkeys(
        ["mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump", "mariadb-admin"], _MYSQL
    ),
    **dict.fromkeys(["mongo", "mongosh", "mongodump", "mongorestore", "mongoimport", "mongoexport", "beeline"], _MONGO),
    **dict.fromkeys(["ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami"], _LDAP),
    **dict.fromkeys(["docker", "podman", "nerdctl", "helm", "oras", "crane", "az"], _LOGIN),
    **dict.fromkeys(["wandb", "swanlab", "vault"], _KEY),
    **dict.fromkeys(["zip", "unzip", "ipmitool"], _PACKED),
    **dict.fromkeys(["sqlcmd", "bcp"], _SQL),
    **dict.fromkeys(["7z", "7za", "7zz"], _MYSQL),
    **dict.fromkeys(["skopeo", "buildah"], _Tool(options=("--creds", "--src-creds", "--dest-creds"))),
    "redis-cli": _Tool(options=("-a",)),
    "openssl": _Tool(options=("-pass", "-passin", "-passout", "-k")),
    "smbclient": _Tool(options=("-U",)),
    "lftp": _Tool(options=("-u",)),
    "ngrok": _Tool(within="add-authtoken", has_key=True),
    "xfreerdp": _Tool(attached=("/p:",)),
}
_NAME = re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, sorted(TOOLS, key=len, reverse=True))) + r")(?=[ \t])")
_WORD = re.compile(r"(?:\"[^\"]*+\"|'[^']*+'|\\[^\n]|[^\s\"';|&\\`)])++")
_END = re.compile(r"[;|&`)]|(?<!\\)\n")  # of a command
_LONGEST = 2000  # characters of a command that are read
_MOST = 64  # arguments of a tool that are read
_PROSE = 16  # characters of a word that no sentence has after "wandb login"; a shorter one is a key if it has a digit


def secret_arguments(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (word, offset in it) of each secret in a command given as a list of arguments."""
    for place, word in enumerate(words):
        if (tool := TOOLS.get(word.rpartition("/")[2])) is not None:
            for number, offset in _of_tool(tool, words[place + 1 : place + _MOST]):
                yield place + 1 + number, offset


def secret_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the secrets in the commands of a text begin and end."""
    end = 0
    for name in _NAME.finditer(text):
        if name.start() < end:
            continue  # an argument of the command before
        words = [*_words(text, name.start())]
        end = words[-1].end()
        for number, offset in secret_arguments([word[0] for word in words]):
            word = words[number][0]
            if offset or words[number - 1][0] != "login" or len(word) >= _PROSE or any(map(str.isdigit, word)):
                yield words[number].start() + offset, words[number].end()


def _words(text: str, at: int) -> Iterator[re.Match[str]]:
    """Yield the words of the command whose tool's name begins at `at`."""
    limit = at + _LONGEST
    while (word := _WORD.search(text, at, limit)) is not None and not _END.search(text, at, word.start()):
        yield word
        at = word.end()


def _of_tool(tool: _Tool, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    is_within, takes_key, after = not tool.within, False, ""
    for number, word in enumerate(words):
        option, joint, value = word.partition("=")
        if after and is_within:
            yield number, 0
            after = ""
        elif word == tool.within:
            is_within, takes_key = True, tool.has_key
        elif word in tool.options:
            after = word
        elif is_within and joint and value and option in tool.options:
            yield number, len(option) + 1
        elif attached := next((begin for begin in tool.attached if word.startswith(begin) and word != begin), ""):
            yield number, len(attached)
        elif takes_key and not word.startswith("-"):
            yield number, 0
            takes_key = False
