"""Secrets are known by their names, and by what stands in URLs; the documents publish the same rule."""

from __future__ import annotations

import html
import json
import re
import shlex
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from trainmaster.core.spec import redaction
from trainmaster.core.spec.redaction import REDACTED, is_secret, known, passwords_in_urls, redact, redact_text

SECRET_NAMES = """HF_TOKEN WANDB_API_KEY DB_PASSWORD token AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID PGPASSWORD DB_PASS MYSQL_PWD GITHUB_PAT
AZURE_STORAGE_KEY SSH_PRIVATE_KEY OPENAI_API_KEYS GOOGLE_APPLICATION_CREDENTIALS BASIC_AUTH my-api-key
PER_USER_SECRET_KEY TOTAL_PASSWORD MIN_IO_SECRET_KEY MAX_API_KEY N_TOKEN API_KEY_N MAX_TOKENS_API_KEY SIZE_API_KEY
DB_PASS_1 DB_PASSWORD2 PASSWORD1 PASSWORD_1_2 WANDB_KEY2 API_KEY_2_OLD TOKEN2_OLD
fs.s3a.secret.key fs.s3a.access.key fs.s3a.bucket.data.session.token fs.azure.account.key.data.blob.core.windows.net
ssl.server.keystore.keypassword hadoop.security.group.mapping.ldap.bind.password fs.azure.account.oauth2.client.secret
dfs.adls.oauth2.credential fs.azure.sas.data.acc.blob.core.windows.net fs.azure.sas.fixed.token fs.gs.auth.service.account.private.key
fs.cosn.userinfo.secretKey wandb.api.token wandb.api_key my.token spark.my.authToken
SSHPASS hfToken APITOKEN MYTOKEN DBPASS PGPASS DBPW MASTERKEY REFRESHTOKEN BASICAUTH AUTHORIZATION BEARER CONNECTION_STRING SAS AZURE_SAS
clientSecret accessKeyId dbPass X-Api-Key MYSQLPWD connectionString DB_CONN_STR"""
PLAIN_NAMES = """TOKENIZERS_PARALLELISM KEYBOARD MONKEY OMP_NUM_THREADS AUTHOR PWD OLDPWD KEY PASS PATH COMPAT SSH_KEY_FILE DB_PASSWORD_FILE
MAX_TOKENS MAX_NEW_TOKENS NUM_TOKENS TOKENS_PER_STEP MAX_TOKENS_2 TOKEN_LENGTH PASSWORD_LENGTH SECRET_COUNT TOKEN_TTL API_KEY_LIMIT
KEY_SIZE_256 KEY1 PASS_1 DB_PASSWORD_FILE_1 PUBLIC_KEY PUBLIC_KEY_2 CACHE_KEY SSH_AUTH_SOCK HADOOP_TOKEN_FILE_LOCATION BYPASS _ 1
hadoop.security.auth_to_local hadoop.security.token.service.use_ip dfs.block.access.token.enable dfs.encryption.key.provider.uri
hadoop.security.credential.provider.path hadoop.security.authentication hadoop.rpc.protection
yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled fs.gs.auth.service.account.private.key.id
hadoop.security.authorization tokenizer.pad_token model.sort_key
SECRETS_DIR SECRET_NAME secretName PGPASSFILE KANSAS sortKey
PAD_TOKEN eosToken num_tokens maxTokens HOTKEY TURKEY COMPASS FORWARD_PASS topologyKey keyboard tokenizer monkey sort_key key-column"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_that_say_they_are_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN_NAMES.split())
def test_names_that_only_look_secret(name: str) -> None:
    assert not is_secret(name)


URLS = [  # a text, the secrets of its URLs, the text without them
    ("postgres://me:hunter2@db/x", ["hunter2"], f"postgres://me:{REDACTED}@db/x"),
    ("redis://:hunter2@db", ["hunter2"], f"redis://:{REDACTED}@db"),
    ("HTTP://ann:pw@proxy:3128", ["pw"], f"HTTP://ann:{REDACTED}@proxy:3128"),
    ("db://me:p@ss@db:1/x?mail=a@b", ["p@ss"], f"db://me:{REDACTED}@db:1/x?mail=a@b"),
    ("db://me:one@a/x db://me:two@b/x", ["one", "two"], f"db://me:{REDACTED}@a/x db://me:{REDACTED}@b/x"),
    ("https://ghp_xxx@github.com/a/b", ["ghp_xxx"], f"https://{REDACTED}@github.com/a/b"),
    (
        "pip install git+https://ghp_xxx@github.com/a/b",
        ["ghp_xxx"],
        f"pip install git+https://{REDACTED}@github.com/a/b",
    ),
    ("https://0123abcd@o1.ingest.sentry.io/2", ["0123abcd"], f"https://{REDACTED}@o1.ingest.sentry.io/2"),
    ("https://sk_live:@api.stripe.com", ["sk_live"], f"https://{REDACTED}:@api.stripe.com"),
    (
        "https://ghp_xxx:x-oauth-basic@github.com",
        ["ghp_xxx", "x-oauth-basic"],
        f"https://{REDACTED}:{REDACTED}@github.com",
    ),
    ("http://db:5432/x", [], "http://db:5432/x"),
    ("http://db:80/a@b", [], "http://db:80/a@b"),
    ("https://db/?mail=a@b", [], "https://db/?mail=a@b"),
    ("ssh://git@github.com/x", [], "ssh://git@github.com/x"),
    ("abfs://data@acc.dfs.core.windows.net/x", [], "abfs://data@acc.dfs.core.windows.net/x"),
    ("at 10:30 me@here", [], "at 10:30 me@here"),
]


@pytest.mark.parametrize(("text", "secrets", "covered"), URLS)
def test_a_url_with_a_password_or_a_token_is_secret_whatever_its_name(
    text: str, secrets: list[str], covered: str
) -> None:
    assert is_secret("DATABASE", text) is bool(secrets)
    assert passwords_in_urls(text) == secrets
    assert redact({"args": [text]}) == {"args": [covered]}
    assert redact(covered) == covered


def test_the_documents_publish_the_same_rule() -> None:
    page = Path(__file__, "../../../docs/guides/secrets.md").resolve().read_text()
    table = [line.split("|") for line in page.splitlines() if line.startswith("|") and "`" in line]
    examples = [name for cells in table for name in re.findall("`([^`]+)`", cells[2])]
    assert examples
    assert [name for name in examples if not is_secret(name)] == []
    published = set(re.findall("[A-Z]+", page))
    words = {
        *redaction._SECRET_WORDS, *redaction._SECRET_KEYS, *redaction._SECRET_LAST, *redaction._HARMLESS_KEYS, *redaction._AMOUNTS,
        *redaction._AMOUNTS_LAST, *redaction._PLACES, *redaction._HARMLESS_PASSES, *redaction._VOCABULARY,
        *redaction._SECRET_ENDINGS, *redaction._LAST_ENDINGS,
    }  # fmt: skip
    assert {word for word in words if not {word, word.removesuffix("S")} & published} == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bash -c 'HF_TOKEN=abc python x'", "bash -c 'HF_TOKEN=[redacted] python x'"),
        ("secrets: {PGPASSWORD: x, PATH: y}", "secrets: {PGPASSWORD: [redacted], PATH: y}"),
        ('{"password": "abc", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        ('{"x": "{\\"password\\": \\"abc\\"}"}', '{"x": "{\\"password\\": \\"[redacted]\\"}"}'),
        ("$(TOKEN=abc)", "$(TOKEN=[redacted])"),
        ("http://h/?a=1&token=abc&b=2", "http://h/?a=1&token=[redacted]&b=2"),
        ("curl -u me:abc http://h", "curl -u me:[redacted] http://h"),
    ],
)
def test_only_the_value_is_redacted(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown
    assert is_secret("CFG", text)


def test_the_login_of_curl_in_a_list() -> None:
    assert redact(["curl", "-u", "me:abc", "x"]) == ["curl", "-u", REDACTED, "x"]
    assert redact(["docker", "-u", "me:abc", "x"]) == ["docker", "-u", "me:abc", "x"]


# Texts over which a pattern that backtracks, or that reads one value again for each name in it, takes minutes instead of a second
LARGE = ["a=b", "a=", "token=", "eyJ-", "x_key='", "--token ", '\\"', 'token=\\"', "curl -u ", "a-", "aB", "A.", " ", "authorization", "://a:",
         "sig=", "token='\\'", "token=\\", "--a \\\n", "'token': ", "-----BEGIN ", "SG.a-", "-u a curl ", "http://",
         "mysql -p", "mysql '", "wandb login ", "docker -p "]  # fmt: skip


@pytest.mark.parametrize("piece", LARGE)
def test_a_large_text_is_redacted_in_time_in_proportion_to_its_length(piece: str) -> None:
    text = piece * (200_000 // len(piece)) + " --api-key abc"
    assert REDACTED in redact_text(text)


VALUE = 'it\'s "sO" \\ é&x<+%y'
WRITINGS = {
    "plain": VALUE,
    "repr": repr(VALUE)[1:-1],
    "repr in repr": repr(repr(VALUE)[1:-1])[1:-1],
    "bytes": repr(VALUE.encode())[2:-1],
    "JSON": json.dumps(VALUE)[1:-1],
    "JSON of UTF-8": json.dumps(VALUE, ensure_ascii=False)[1:-1],
    "JSON of Go": json.dumps(VALUE)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c"),
    "JSON of JavaScript": json.dumps(VALUE)[1:-1].replace("<", "\\x3C"),
    "URL": quote(VALUE),
    "whole URL": quote(VALUE, ""),
    "small URL": re.sub("%..", lambda match: match[0].lower(), quote(VALUE, "")),
    "form": quote_plus(VALUE),
    "shell": shlex.quote(VALUE)[1:-1],
    "bash": VALUE.replace("'", "'\\''"),
    "YAML": VALUE.replace("'", "''"),
    "HTML": html.escape(VALUE),
    "XML": "".join(f"&#{ord(letter)};" if not letter.isalnum() else letter for letter in VALUE),
    "hex": VALUE.encode().hex(),
    "large hex": VALUE.encode().hex().upper(),
    "large": VALUE.upper().replace("É", "é"),
    "coloured": f"{VALUE[:8]}\x1b[1;31m{VALUE[8:]}\x1b[0m",
    "wrapped": f"{VALUE[:9]}\n{VALUE[9:]}",
    "wrapped by a terminal": f"{VALUE[:9]}\r\n{VALUE[9:]}",
}


@pytest.mark.parametrize("way", WRITINGS)
def test_a_value_is_known_in_each_writing(way: str) -> None:
    text = WRITINGS[way]
    shown = redact(f"before, {text}, after", (VALUE, "1234567"))
    assert shown.replace("\x1b[0m", "") == f"before, {REDACTED}, after"
    assert redact({"a": [text]}, (VALUE,))["a"][0].replace("\x1b[0m", "") == REDACTED


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("wandb login 0123456789abcdefSECRET", "wandb login *"),
        ("wandb login --relogin abc123 && python x.py", "wandb login --relogin * && python x.py"),
        ("run wandb login first", "run wandb login first"),
        ("mysql -uroot -pPW base; echo -pabc", "mysql -uroot -p* base; echo -pabc"),
        ("mysql -p'a b;c' -h h", "mysql -p* -h h"),
        ("mysql -p base", "mysql -p base"),
        ("/usr/bin/mysqldump -h h -pPW | gzip -p1", "/usr/bin/mysqldump -h h -p* | gzip -p1"),
        ("docker login -u me -p PW host", "docker login -u me -p * host"),
        ("docker run -p 8080:80 image", "docker run -p 8080:80 image"),
        ("redis-cli -h h -a PW ping", "redis-cli -h h -a * ping"),
        ("(redis-cli -a PW) -a x", "(redis-cli -a *) -a x"),
        ("skopeo copy --src-creds=me:PW a b", "skopeo copy --src-creds=* a b"),
        ("openssl enc -k PW -in x", "openssl enc -k * -in x"),
        ("7z x -pPW a.7z", "7z x -p* a.7z"),
        ("docker exec db mysql -pPW", "docker exec db mysql -p*"),
        ("vault login hvs1", "vault login *"),
        ("mysqlx -pPW", "mysqlx -pPW"),
    ],
)
def test_secrets_among_the_arguments_of_tools(text: str, shown: str) -> None:
    assert redact_text(text) == shown.replace("*", REDACTED)
    assert is_secret("PLAIN", text) == ("*" in shown)
    assert redact({"env": {"PLAIN": f"{text}"}, "command": ["sh", "-c", text]})["command"][2] == shown.replace(
        "*", REDACTED
    )


def test_secrets_among_the_arguments_of_tools_in_a_list() -> None:
    assert redact(["/opt/bin/wandb", "login", "KEY"]) == ["/opt/bin/wandb", "login", REDACTED]
    assert redact(["env", "A=1", "mysql", "-phunter2", "x"]) == ["env", "A=1", "mysql", f"-p{REDACTED}", "x"]
    assert redact(["podman", "login", "-p", "PW", "h"]) == ["podman", "login", "-p", REDACTED, "h"]
    assert redact(["docker", "run", "-p", "80", 1]) == ["docker", "run", "-p", "80", 1]


def test_what_is_around_a_value_stays_as_it_was() -> None:
    values = ("Value-of-it+1", "other & value")
    text = """{"a": "Value-of-it+1", 'b': 'OTHER &amp; VALUE'}\r\n100% \\n &lt; \x1b[1mValue-of-it%2b1Value-of-it+1\x1b[0m é 1234567"""
    shown = (
        f"""{{"a": "{REDACTED}", 'b': '{REDACTED}'}}\r\n100% \\n &lt; \x1b[1m{REDACTED}{REDACTED}\x1b[0m é 1234567"""
    )
    assert redact(text, values) == shown
    assert redact("half \ud800 of Value-of-it+1", values) == f"half \ud800 of {REDACTED}"
    assert redact("a byte \udcff of Value\udcff-of", ("Value\udcff-of",)) == f"a byte \udcff of {REDACTED}"
    quotes = "'" * 4 + "ab" + "'" * 4
    assert redact(quotes, (quotes,)) == REDACTED, "almost nothing of it has a normal form"


def test_lines_of_a_value_are_known_and_short_ones_are_not() -> None:
    values = ("first line of it\nsecond line of it\nshort", "1234567")
    shown = redact("second line of it; first line of it\nsecond line of it\nshort; short; 1234567", values)
    assert shown == f"{REDACTED}; {REDACTED}; short; 1234567"


@pytest.mark.parametrize(
    "line", ["a line of a program, loss=0.25\n", '{"step": 1, "text": "a \\"b\\" 50% &amp; \\u00e9"}\n']
)
def test_values_are_looked_for_at_a_low_cost(line: str) -> None:
    """A byte of output costs some 10 ns, one of a line full of escapes 50; a busy machine takes longer."""
    values = tuple(f"{number}-value-{number * 7919:x}" for number in range(10))
    data, found = (line * 2000).encode(), known(values)
    rest = b""
    began = time.process_time()
    for _ in range(20):
        shown, rest = found.split(rest + data, b"x")
    assert time.process_time() - began < 20 * len(data) * 250e-9
    assert shown + rest != b""


def test_the_secret_texts_of_an_account_are_known_as_they_are() -> None:
    account = {
        "type": "service_account",
        "private_key": "-----BEGIN PRIVATE KEY-----\nfirst-line\nother-line\n-----END",
    }
    text = "first-line, other-line, service_account"
    assert redact(text, (json.dumps(account),)) == f"{REDACTED}, {REDACTED}, service_account"
