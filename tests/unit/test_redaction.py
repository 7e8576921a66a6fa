"""Secrets are known by their names, and by what stands in URLs; the documents publish the same rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster.core.spec import redaction
from trainmaster.core.spec.redaction import REDACTED, is_secret, passwords_in_urls, redact

SECRET_NAMES = """HF_TOKEN WANDB_API_KEY DB_PASSWORD token AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID PGPASSWORD DB_PASS MYSQL_PWD GITHUB_PAT
AZURE_STORAGE_KEY SSH_PRIVATE_KEY OPENAI_API_KEYS GOOGLE_APPLICATION_CREDENTIALS BASIC_AUTH my-api-key
PER_USER_SECRET_KEY TOTAL_PASSWORD MIN_IO_SECRET_KEY MAX_API_KEY N_TOKEN API_KEY_N MAX_TOKENS_API_KEY SIZE_API_KEY
DB_PASS_1 DB_PASSWORD2 PASSWORD1 PASSWORD_1_2 WANDB_KEY2 API_KEY_2_OLD TOKEN2_OLD
fs.s3a.secret.key fs.s3a.access.key fs.s3a.bucket.data.session.token fs.azure.account.key.data.blob.core.windows.net
ssl.server.keystore.keypassword hadoop.security.group.mapping.ldap.bind.password fs.azure.account.oauth2.client.secret
dfs.adls.oauth2.credential fs.azure.sas.data.acc.blob.core.windows.net fs.azure.sas.fixed.token fs.gs.auth.service.account.private.key
fs.cosn.userinfo.secretKey wandb.api.token wandb.api_key"""
PLAIN_NAMES = """TOKENIZERS_PARALLELISM KEYBOARD MONKEY OMP_NUM_THREADS AUTHOR PWD OLDPWD KEY PASS PATH COMPAT SSH_KEY_FILE DB_PASSWORD_FILE
MAX_TOKENS MAX_NEW_TOKENS NUM_TOKENS TOKENS_PER_STEP MAX_TOKENS_2 TOKEN_LENGTH PASSWORD_LENGTH SECRET_COUNT TOKEN_TTL API_KEY_LIMIT
KEY_SIZE_256 KEY1 PASS_1 DB_PASSWORD_FILE_1 PUBLIC_KEY PUBLIC_KEY_2 CACHE_KEY SSH_AUTH_SOCK HADOOP_TOKEN_FILE_LOCATION BYPASS _ 1
hadoop.security.auth_to_local hadoop.security.token.service.use_ip dfs.block.access.token.enable dfs.encryption.key.provider.uri
hadoop.security.credential.provider.path hadoop.security.authentication hadoop.rpc.protection
yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled fs.gs.auth.service.account.private.key.id"""


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
        *redaction._AMOUNTS_LAST, *redaction._PLACES,
    }  # fmt: skip
    assert {word for word in words if not {word, word.removesuffix("S")} & published} == set()
