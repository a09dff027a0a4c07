import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

from flows.access import PROFILES_FILE, PasswordError, password


@pytest.fixture(autouse=True)
def _no_password_is_set(toy_project: Path) -> Iterator[None]:
    with temporary_settings(restore_defaults={PREFECT_API_AUTH_STRING}):
        yield


def test_a_password_is_made_once_and_for_its_owner_alone() -> None:
    first = password()
    assert len(first.partition(":")[2]) >= 32
    assert password() == first
    assert stat.S_IMODE(PROFILES_FILE.stat().st_mode) == 0o600
    assert [file.name for file in PROFILES_FILE.parent.iterdir()] == [PROFILES_FILE.name]


def test_prefect_reads_it_in_this_folder() -> None:
    made = password()
    code = (
        "from prefect.settings import get_current_settings as get\n"
        "print(get().api.auth_string.get_secret_value(), get().server.api.auth_string.get_secret_value())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [made, made]


def test_the_one_of_the_environment_comes_first() -> None:
    with temporary_settings({PREFECT_API_AUTH_STRING: "me:mine"}):
        assert password() == "me:mine"
    assert not PROFILES_FILE.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("active = ", "is damaged"), ('active = "a"\n[profiles.a]\n', "has no PREFECT_API_AUTH_STRING")],
)
def test_a_file_without_one_is_named(text: str, reason: str) -> None:
    PROFILES_FILE.parent.mkdir()
    PROFILES_FILE.write_text(text)
    with pytest.raises(PasswordError, match=reason):
        password()
