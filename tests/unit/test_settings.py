"""Settings: what is missing or wrong is named in one line, with the fix."""

from datetime import timedelta
from pathlib import Path

import pytest

from app.ledger.notes import COSIGNATURE, VerifierKey
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.settings import RETRY_SCHEDULE, SettingError, Settings, kept_settings
from dev.tsa import KeyType, TimestampAuthority
from tests.unit.verify import packs
from tests.unit.verify.authorities import authority

NEEDED = {
    "DATABASE_URL": "postgresql://me:secret@db/records",
    "MASTER_KEYS": MasterKeys.generate(),
    "BASE_URL": "https://records.example.com",
}


def read(**more: str) -> Settings:
    return Settings.from_environ(NEEDED | more)


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_what_is_needed_and_missing_is_named(name: str) -> None:
    rest = {key: value for key, value in NEEDED.items() if key != name}
    with pytest.raises(SettingError, match=f"^{name} is not set"):
        Settings.from_environ(rest)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://db/records"),
        ("DATABASE_URL", "postgresql://me:secret@db/records?pgbouncer=true"),
        ("REDIS_URL", "http://redis"),
        ("REDIS_URL", "redis://redis/zero"),
        ("MASTER_KEYS", "hunter2"),
        ("BASE_URL", "records.example.com"),
        ("ROOT_ADMIN_KEY", "hunter2"),
        ("WEBHOOK_ALLOWED_NETWORKS", "everywhere"),
        ("WEBHOOK_NAT64_PREFIXES", "10.0.0.0/8"),
        ("WEBHOOK_NAT64_PREFIXES", "2001:db8::/95"),
        ("WEBHOOK_NAT64_PREFIXES", "2001:db8:0:0:100::/96"),
        ("RETRY_SCHEDULE", "0,soon"),
        ("RETRY_SCHEDULE", "nan"),
        ("PAUSE_SECONDS", "0"),
        ("HISTORY_DAYS", "0"),
        ("TENANT_STORED_MIB", "10 GiB"),
        ("TENANT_RECORDS", "-1"),
        ("TENANT_RECORDS", "9" * 30),
        ("DATABASE_CONNECTIONS", "1"),
        ("LOG_ORIGIN", "https://records.example.com"),
        ("LOG_ORIGIN", "a+log"),
        ("LOG_HEAD_URL", "/var/lib/head"),
        ("LOG_HEAD_URL", "file://host/head"),
        ("LOG_HEAD_URL", "file:///no/such/folder/head"),
        ("LOG_HEAD_URL", "s3://bucket"),
        ("LOG_HEAD_URL", "https://bucket/head"),
        ("LOG_LEVEL", "LOUD"),
        ("WEBHOOK_CA_FILE", "/no/such/file"),
        ("WEBHOOK_CA_FILE", __file__),
        ("DIGEST_SETTLE_SECONDS", "nan"),
        ("SMTP_URL", "mail.example.com"),
        ("MAIL_FROM", "Records <records@example.com>"),
        ("TSA_URL", "ftp://tsa.example.com"),
        ("TSA_URL", "https://user:password@tsa.example.com/"),
        ("TSA_AUTHORIZATION", "hunter2"),
        ("TSA_AUTHORIZATION", "Bearer h\u00fcnter2"),
        ("TSA_CA_FILE", "/no/such/file"),
        ("TSA_CA_FILE", __file__),
        ("SIGNING_CERTIFICATES", "/no/such/file"),
        ("SIGNING_CERTIFICATES", __file__),
        ("SIGNING_CERTIFICATES", authority().chain.decode()),
        ("WITNESS_POLICY", "/no/such/file"),
        ("WITNESS_POLICY", __file__),
        ("LOG_REQUIRE_QUORUM", "yes"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} is wrong: ") as refusal:
        read(**{name: value})
    assert "\n" not in str(refusal.value)
    assert "nter2" not in str(refusal.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_anchoring_are_read_as_windows_saves_them(tmp_path: Path, encoding: str) -> None:
    policy = f"witness a {packs.witness_key(9)}\r\nquorum a\r\n"
    (tmp_path / "policy").write_bytes(policy.encode(encoding))
    roots = authority().chain.decode().replace("\n", "\r\n")
    (tmp_path / "ca.pem").write_bytes(roots.encode(encoding))
    found = read(
        WITNESS_POLICY=str(tmp_path / "policy"),
        TSA_URL="https://tsa.example.com/",
        TSA_CA_FILE=str(tmp_path / "ca.pem"),
    )
    assert found.witness_policy is not None
    assert found.witness_policy.quorum == "a"
    assert len(found.tsa_ca_file) == 1
    (tmp_path / "policy").write_bytes("quorum none\n".encode("utf-16-le"))
    with pytest.raises(SettingError, match=r"^WITNESS_POLICY is wrong: .*UTF-16"):
        read(WITNESS_POLICY=str(tmp_path / "policy"))


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_what_is_in_a_file_may_be_given_as_text(tmp_path: Path, line_break: str) -> None:
    root = authority().chain.decode()
    texts = {
        "TSA_CA_FILE": root,
        "WEBHOOK_CA_FILE": f"# Autorité de test\n{root}",
        "WITNESS_POLICY": f"witness a {packs.witness_key(9)}\nquorum a\n",
    }
    paths = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace("\n", line_break), newline="")
        paths[name] = str(tmp_path / name)
        texts[name] = text.replace("\n", line_break)
    url = "https://tsa.example.com/"
    by_text, by_path = read(TSA_URL=url, **texts), read(TSA_URL=url, **paths)
    for found in (by_text, by_path):
        assert len(found.tsa_ca_file) == 1
        assert found.webhook_ca_file == root.strip()
        assert found.witness_policy is not None
        assert found.witness_policy.quorum == "a"
    # As where a variable is one line.
    assert read(WEBHOOK_CA_FILE=root.replace("\n", "\\n")).webhook_ca_file == root.strip()


@pytest.mark.parametrize(
    "name", ["TSA_CA_FILE", "SIGNING_CERTIFICATES", "WEBHOOK_CA_FILE", "WITNESS_POLICY"]
)
def test_a_text_that_cannot_be_read_is_refused_without_being_shown(name: str) -> None:
    for text in ("-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----", "a\nhunter2"):
        with pytest.raises(SettingError, match=f"^{name} is wrong: ") as refusal:
            read(**{name: text})
        assert "\n" not in str(refusal.value)
        assert "hunter2" not in str(refusal.value)


def test_a_mail_server_needs_a_sender_and_its_password_is_not_shown() -> None:
    url = "smtp://me:hunter2@mail.example.com"
    with pytest.raises(SettingError, match=r"^MAIL_FROM is not set"):
        read(SMTP_URL=url)
    settings = read(SMTP_URL=url, MAIL_FROM="records@example.com")
    assert settings.smtp_url is not None
    assert settings.smtp_url.password == "hunter2"
    assert "hunter2" not in repr(settings)
    with pytest.raises(SettingError) as refused:
        read(SMTP_URL=f"{url}?tls=maybe", MAIL_FROM="records@example.com")
    assert "hunter2" not in str(refused.value)


def test_without_a_mail_server_mails_are_files_beside_the_other_data() -> None:
    settings = read(DATA_DIR="/srv/records")
    assert (settings.smtp_url, settings.mail_folder) == (None, Path("/srv/records/mail"))
    assert settings.takes_mail
    assert not read().takes_mail, "a deployed service has no folder of its own"
    assert read(DIGEST_SETTLE_SECONDS="0").digest_settle == timedelta(0)


def test_what_is_written_is_read_and_an_empty_variable_counts_as_not_set() -> None:
    assert read(RETRY_SCHEDULE="", REDIS_URL=" ").retry_schedule == RETRY_SCHEDULE
    assert read(RETRY_SCHEDULE="0, 1,2.5").retry_schedule == (0.0, 1.0, 2.5)
    assert read(BASE_URL="https://records.example.com/").base_url == "https://records.example.com"
    settings = read(DATABASE_URL="postgres://me@db/x", REDIS_URL="rediss://:pw@redis:6380/1")
    assert settings.database_url == "postgresql+psycopg://me@db/x"
    assert settings.database_admin_url == settings.database_url


@pytest.mark.parametrize(
    ("base_url", "origin"),
    [
        ("https://records.example.com", "records.example.com/v1/log/1"),
        ("http://127.0.0.1:8000/records/", "127.0.0.1:8000/records/v1/log/1"),
        ("https://records.example.com/a+b", "records.example.com/v1/log/1"),
    ],
)
def test_the_log_is_named_after_its_prefix_unless_told(base_url: str, origin: str) -> None:
    assert read(BASE_URL=base_url).log_origin == origin
    assert read(BASE_URL=base_url, LOG_ORIGIN="log.example/1").log_origin == "log.example/1"


def test_no_secret_is_shown_by_printing_the_settings() -> None:
    key = api_keys.new()
    shown = repr(read(ROOT_ADMIN_KEY=key, METRICS_TOKEN="metrics-secret"))
    for secret in (key, "secret@db", "metrics-secret", NEEDED["MASTER_KEYS"]):
        assert secret not in shown


def test_the_kept_files_of_a_stack_are_read(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("BASE_URL=http://127.0.0.1:8000\nREDIS_URL='redis://:a b@x'\n")
    with (tmp_path / "env").open("a") as env:
        env.write("WITNESS_POLICY='log x\nquorum none'\n")
    (tmp_path / "secrets").write_text("MASTER_KEYS=abc\n")
    assert kept_settings(tmp_path) == {
        "MASTER_KEYS": "abc",
        "BASE_URL": "http://127.0.0.1:8000",
        "REDIS_URL": "redis://:a b@x",
        "WITNESS_POLICY": "log x\nquorum none",
    }
    assert kept_settings(tmp_path / "nowhere") == {}


def test_an_authority_is_named_with_its_root_or_not_at_all(tmp_path: Path) -> None:
    authority = TimestampAuthority(tmp_path, KeyType.P256)
    url, file = "http://tsa.test/tsr", str(authority.ca_file)
    with pytest.raises(SettingError, match=r"^TSA_CA_FILE is not set, and TSA_URL is"):
        read(TSA_URL=url)
    with pytest.raises(SettingError, match=r"^TSA_URL is not set, and TSA_CA_FILE is"):
        read(TSA_CA_FILE=file)
    with pytest.raises(SettingError, match=r"^TSA_CA_FILE is wrong: it holds no root"):
        read(TSA_URL=url, TSA_CA_FILE=str(tmp_path / "tsa.pem"))
    both = read(TSA_URL=url, TSA_CA_FILE=file)
    assert (both.tsa_url, len(both.tsa_ca_file)) == (url, 1)
    assert (read().tsa_url, read().tsa_ca_file, read().witness_policy) == (None, (), None)


def test_a_policy_is_read_whole_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    key = VerifierKey.ed25519("witness.test", bytes(31) + b"\1", COSIGNATURE)
    policy = tmp_path / "policy"
    policy.write_text(f"witness w {key} http://witness.test/prefix\nquorum w\n")
    found = read(WITNESS_POLICY=str(policy)).witness_policy
    assert found is not None
    assert [each.url for each in found.witnesses] == ["http://witness.test/prefix"]
    for text, said in (
        (f"witness w {key} witness.test\nquorum w\n", "The URL must begin"),
        (f"witness w {key}\nquorum x\n", "Line 2 of the policy"),
    ):
        policy.write_text(text)
        with pytest.raises(SettingError, match=f"^WITNESS_POLICY is wrong: {said}"):
            read(WITNESS_POLICY=str(policy))


def test_a_quorum_is_required_only_of_a_policy_that_can_make_one(tmp_path: Path) -> None:
    def required(*lines: str) -> bool:
        (tmp_path / "policy").write_text("\n".join([*lines, ""]))
        return read(
            WITNESS_POLICY=str(tmp_path / "policy"), LOG_REQUIRE_QUORUM="1"
        ).log_require_quorum

    one, two = (f"witness {each} {packs.witness_key(each)}" for each in (8, 9))
    url = "https://w.example/"
    with pytest.raises(SettingError, match=r"^WITNESS_POLICY is not set, and LOG_REQUIRE_QUORUM"):
        read(LOG_REQUIRE_QUORUM="1")
    with pytest.raises(SettingError, match=r"^WITNESS_POLICY says `quorum none`"):
        required(f"{one} {url}", "quorum none")
    for group, is_enough in (("all", False), ("any", True)):
        policy = (f"{one} {url}", two, f"group both {group} 8 9", "quorum both")
        if is_enough:
            assert required(*policy)
        else:
            with pytest.raises(SettingError, match=r"^WITNESS_POLICY has a quorum that cannot be"):
                required(*policy)
    assert not read(LOG_REQUIRE_QUORUM="0").log_require_quorum
    assert not read().log_require_quorum


@pytest.mark.parametrize(
    ("given", "web", "worker"),
    [
        ({}, 10, 10),
        ({"DATABASE_CONNECTIONS": "10", "WEB_CONCURRENCY": "1", "WORKER_PROCESSES": "1"}, 5, 5),
        ({"WEB_CONCURRENCY": "33"}, 1, 10),
        ({"DATABASE_CONNECTIONS": "9", "WORKER_PROCESSES": "3"}, 2, 1),
        ({"DATABASE_CONNECTIONS": "2"}, 1, 1),
    ],
    ids=["defaults", "20 in all", "a large dyno", "odd", "fewest"],
)
def test_each_process_has_its_share_of_the_connections(
    given: dict[str, str], web: int, worker: int
) -> None:
    settings = read(**given)
    assert (settings.connections_of("web"), settings.connections_of("worker")) == (web, worker)


def test_a_login_at_the_authority_is_set_beside_its_url_and_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(authority().chain)
    told = {"TSA_URL": "https://tsa.example.com/", "TSA_CA_FILE": str(tmp_path / "ca.pem")}
    login = "Basic dXNlcjpodW50ZXIy"
    found = read(**told, TSA_AUTHORIZATION=login)
    assert found.tsa_authorization == login
    assert "dXNlcjpodW50ZXIy" not in repr(found)
    assert read(**told).tsa_authorization is None
    with pytest.raises(SettingError, match=r"^TSA_URL is not set, and TSA_AUTHORIZATION is"):
        read(TSA_AUTHORIZATION=login)
    with pytest.raises(SettingError, match="set TSA_AUTHORIZATION"):
        read(**told | {"TSA_URL": "https://user:hunter2@tsa.example.com/"})
