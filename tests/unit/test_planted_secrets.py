"""Secrets of many kinds are planted in the places of a job where users write them, and looked for on every surface that shows a job.

A program's own output is the user's: secrets that Trainmaster was given are redacted there too, those that only the program knows are not.
`--dry-run` prints a job file that runs, on the submitter's own terminal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from trainmaster.core.spec.redaction import REDACTED, redact, redact_text

TM = [sys.executable, "-m", "trainmaster.cli"]
RANDOM = "Zx8Qw3Er5Ty7Ui9Op1As2Df4Gh6Jk0Lm"
# What is written -> the part of it that nobody may see. {} stands for a random text of 32 letters and digits.
KINDS = {
    "password in a URL": "postgres://me:{}@db/x", "token in a URL": "https://{}@github.com/me/repo", "proxy": "http://ann:{}@proxy:3128",
    "azure account": "AccountName=me;AccountKey={}==;EndpointSuffix=core", "azure bus": "Endpoint=sb://h/;SharedAccessKey={}",
    "azure sas": "https://me.blob.core.windows.net/c?sv=2020&sig={}%3D", "aws url": "https://b/k?X-Amz-Signature={}&x=1",
    "aws session": "https://b/k?X-Amz-Security-Token={}", "gcs url": "https://b/k?X-Goog-Signature={}", "jdbc": "jdbc:mysql://h/d?user=a&password={}",
    "odbc": "Server=h;Uid=me;Pwd={};", "oauth": "grant_type=x&client_secret={}", "access token": "https://api/x?access_token={}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{}", "github": "ghp_{}", "github app": "ghs_{}", "github new": "github_pat_{}",
    "gitlab": "glpat-{}", "npm": "npm_{}abcd", "pypi": "pypi-AgEIcHlwaS5vcmcCJ{}{}", "slack": "xoxb-1234567890-{}",
    "slack hook": "https://hooks.slack.com/services/T00/B00/{}", "discord hook": "https://discord.com/api/webhooks/1/{}",
    "openai": "sk-proj-{}", "openai old": "sk-{}abcdef", "stripe": "sk_live_{}", "google": "AIza{}xyz", "google oauth": "ya29.{}",
    "sendgrid": "SG.{}.{}", "header": "Authorization: Bearer {}", "private key": "-----BEGIN PRIVATE KEY-----\n{}\n-----END",
    "shell": "bash -c 'HF_TOKEN={} python x'", "after &&": "true&&TOKEN={} python", "in $()": "$(TOKEN={} run)",
    "in quotes": "TOKEN=a\\ {}",
    "query token": "https://h/x?token={}", "query api key": "https://h/x?a=b&api_key={}&c=d", "query key": "https://h/?key={}",
    "query auth": "https://h/?auth={}", "python": "{{'db_password': '{}', 'b': 1}}", "json": '{{"password": "{}"}}',
    "json in json": '{{"x": "{{\\"password\\": \\"{}\\"}}"}}', "yaml": "password: {}", "ini": "aws_secret_access_key = {}",
    "docker -e": "docker run -e HF_TOKEN={} image", "docker --env": "docker run --env HF_TOKEN={} image",
    "configuration": "run --conf spark.hadoop.fs.s3a.secret.key={} x", "hydra": "python train.py optim.api_key={}",
    "java": "-Dpassword={}",    "header key": "X-Api-Key: {}", "header alone": "Authorization: {}",
    "header scheme": "Authorization: ApiKey {}",
    "header =": "Authorization=Bearer {}",
    "cookie": "Cookie: a=b; sid={}", "curl": "curl -u me:{} http://h", "sshpass": "sshpass -p {} ssh h", "camel case": "clientSecret={}",
    "nvidia": "nvapi-{}", "groq": "gsk_{}", "replicate": "r8_{}", "digitalocean": "dop_v1_{}", "vault": "hvs.{}", "docker": "dckr_pat_{}",
    "tailscale": "tskey-auth-{}", "linear": "lin_api_{}", "shopify": "shpat_{}", "openai account": "sk-svcacct-{}",
    "slack app": "xapp-1-{}",
    "age": "AGE-SECRET-KEY-1{}",
}  # fmt: skip
OPTIONS = (
    "--password {}",
    "--password={}",
    "--api-key '{}'",
    "--hf-token {}",
    "-p 1 --db-pw {}",
    "API_KEY={} true",
    "--password -x{}",
    "--password 'a'\"'\"'{}'",
    "--cookie {}",
)
VARIABLES = (
    "MY_PW",
    "LOGIN_PASSCODE",
    "DB_DSN",
    "SESSION_COOKIE",
    "SLACK_WEBHOOK",
    "SERVICE_JWT",
    "HF_TOKEN",
    "SSHPASS",
    "hfToken",
    "DBPASS",
    "MASTERKEY",
)
VERBS = (
    "list", "list --json", "status JOB", "status JOB --json", "events JOB", "events JOB --json", "audit JOB", "dump JOB worker:0",
    "logs JOB", "logs JOB master", "explain job.json", "export JOB exported-STAGE",
)  # fmt: skip


def planted(number: int) -> str:
    """Return a secret of its own: of 32 letters and digits."""
    return f"{RANDOM[:27]}{number:05}"


def written(kind: str, secret: str) -> str:
    """Return a text of a kind with a secret in it."""
    return KINDS[kind].replace("{{", "<").replace("}}", ">").replace("{}", secret).replace("<", "{").replace(">", "}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_is_known(kind: str) -> None:
    text = written(kind, planted(7))
    for shown in (redact_text(text), redact_text(f"see {text} there"), *redact([text, {"x": text}])[1].values()):
        assert planted(7) not in shown
        assert REDACTED in shown
        assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --lr 0.1 --tokenizer bert --key value --max-tokens 4096 --verbose", "basic training of sk-learn models", "x=1 y=2",
        "s3://bucket/signals?versionId=3", "a commit 3f786850e387550fdab836ed7e6dc881de23001b", "user:1 at 10:30 me@here", "ASIA-PACIFIC",
        "hf_hub_download(repo)", "take it out, and say secrets: {PGPASSWORD: }, or",
        "AccountName=me;EndpointSuffix=x", "--password-file /run/secrets/db", "design=new&assign=1",
        "--num_tokens=5 --sort_key x --key-column id keyboard monkey=1 turkey=2 PATH=/a PWD=/b OLDPWD=/c",
        "loss: 2.1, tokens: 4096, tokens_seen: 10",
        "--pad_token <pad> --eos-token=</s> padToken=x pad_token_id=0", "KeyError: 'api_key'",
        "NoSuchKey: it does not exist", "bypass=1 compass: north",
        "docker run -u 1000:1000 -v secrets:/run/secrets image", "--use_auth_token --verbose", "--use_auth_token True", "secretName: db",
        "topologyKey: kubernetes.io/hostname", "if password == x:", "export HF_TOKEN=..., or name it",
        "worker:0 a::token::b", "n_pass: 4 keypoints=3",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def tm(arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TM, *arguments.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


PROGRAM = """
import os, time
print("given", *(os.environ[name] for name in os.environ["NAMES"].split()), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise ValueError("cannot log in: " + os.environ["KNOWN_TO_THE_PROGRAM"])
"""


def test_no_surface_shows_a_planted_secret(tmp_path: Path, home) -> None:
    secrets = [planted(number) for number in range(2 * len(KINDS) + len(OPTIONS) + len(VARIABLES) + 1)]
    rest = iter(secrets)
    (tmp_path / "program.py").write_text(PROGRAM)
    options = " ".join(option.replace("{}", next(rest)) for option in OPTIONS if not option.startswith("API_KEY"))
    variables = {name: next(rest) for name in VARIABLES}
    job = {
        "name": "planted",
        "annotations": {kind: written(kind, next(rest)) for kind in KINDS},
        "roles": {
            "worker": {
                "restart": {"limit": 0},
                "command": f"API_KEY={next(rest)} {sys.executable} program.py {options} --url {KINDS['jwt'].replace('{}', next(rest))}",
                "env": {**variables, "NAMES": " ".join(VARIABLES), "KNOWN_TO_THE_PROGRAM": KINDS["github"].replace("{}", next(rest))},
            }
        },
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = tm("submit job.json", tmp_path)
    assert done.returncode == 0, done.stderr
    (name,) = (path.name for path in (home.state / "jobs").iterdir() if path.name.startswith("planted-"))
    until(lambda: "given" in tm(f"logs {name}", tmp_path).stdout)
    shown = {}
    for stage in ("running", "ended"):
        for verb in VERBS:
            said = tm(verb.replace("JOB", name).replace("STAGE", stage), tmp_path)
            shown[f"{verb} ({stage})"] = said.stdout + said.stderr
        (tmp_path / "go").touch()
        tm(f"wait {name}", tmp_path)
    shown |= {
        str(path): path.read_text(errors="replace") for path in tmp_path.glob("exported-*/**/*") if path.is_file()
    }
    shown |= {str(path): path.read_text(errors="replace") for path in home.state.glob("*.json")}
    assert any("cannot log in" in text for text in shown.values())
    assert len(shown) > 2 * len(VERBS) + 10
    found = {where: [secret for secret in secrets if secret in text] for where, text in shown.items()}
    assert {where: kinds for where, kinds in found.items() if kinds} == {}


REPORTING = """
import os, sys, threading, time
from trainmaster import runtime
from trainmaster.runtime.reports import cannot_go_on
secret, key = os.environ["LOGIN"], os.environ["PEM"]
print("given", repr(key), key, flush=True)
runtime.metrics(**{"of " + secret: 1.5})
def wait():
    with runtime.lock("lock of " + secret):
        time.sleep(3600)
for _ in range(2):
    threading.Thread(target=wait, daemon=True).start()
with runtime.phase("login with " + secret):
    while not os.path.exists("go"):
        time.sleep(0.05)
print(repr(key), flush=True)
cannot_go_on("x" * (1974 if "long" in sys.argv else 0) + " cannot log in with " + secret)
sys.exit(3)
"""


@pytest.mark.parametrize("way", ["short", "long"])
def test_what_a_program_reports_shows_no_secret_of_its_job(tmp_path: Path, home, way: str) -> None:
    secret, lines = planted(1), [planted(number) for number in (2, 3)]
    (tmp_path / "program.py").write_text(REPORTING)
    (tmp_path / "login").write_text(secret)
    (tmp_path / "pem").write_text("-----BEGIN KEY-----\n{}\n{}\n".format(*lines))
    job = {
        "name": "reporting",
        "secrets": {"LOGIN": {"file": "login"}, "PEM": {"file": "pem"}},
        "roles": {"worker": {"restart": {"limit": 0}, "command": f"{sys.executable} program.py {way}"}},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = tm("submit job.json", tmp_path)
    assert done.returncode == 0, done.stderr
    (name,) = (path.name for path in (home.state / "jobs").iterdir() if path.name.startswith("reporting-"))
    until(lambda: all(word in tm(f"status {name}", tmp_path).stdout for word in ("login with", "lock of")))
    shown = {}
    for stage in ("running", "ended"):
        for verb in (*VERBS, "wait JOB" if stage == "ended" else "list"):
            said = tm(verb.replace("JOB", name).replace("STAGE", stage), tmp_path)
            shown[f"{verb} ({stage})"] = said.stdout + said.stderr
        (tmp_path / "go").touch()
        tm(f"wait {name}", tmp_path)
    for folder in (tmp_path.glob("exported-*/**/*"), (home.state / "jobs" / name).rglob("*")):
        shown |= {str(path): path.read_bytes().decode(errors="replace") for path in folder if path.is_file()}
    assert any("of [redacted]" in text for text in shown.values())
    assert "cannot log in with" in shown["wait JOB (ended)"]
    # Half of a secret is one too: texts are cut after they are redacted.
    found = {where: [part for part in (secret[:9], *lines) if part in text] for where, text in shown.items()}
    assert {where: parts for where, parts in found.items() if parts} == {}


def test_an_error_quotes_no_secret_of_what_the_user_wrote(tmp_path: Path, home) -> None:
    password, signature = planted(1), planted(2)
    url = f"http://me:{password}@h/x?sig={signature}"
    job = {"inputs": {"d": {"url": url, "as": url}}, "roles": {"worker": {"command": "true"}}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    for arguments in ("submit job.json", "submit job.json --json", f"submit {url}", f"list --{url}"):
        done = tm(arguments, tmp_path)
        assert done.returncode == 2, done.stderr
        assert REDACTED in done.stderr
        assert not [secret for secret in (password, signature) if secret in done.stdout + done.stderr]
