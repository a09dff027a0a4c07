"""Parameters and presets in any order: `params.yaml` stays valid, keeps its comments, and is undone to the byte."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rulka.machine.errors import UserError
from rulka.params import Params, checked_params, read_params, read_sections
from rulka.params.presets import HEADER, apply_preset, differences, undo_preset
from rulka.params.reader import parsed
from rulka.params.writer import with_values
from tests.params.test_presets import comments

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("params.yaml")
PRESETS = sorted(ROOT.glob("presets/*.yaml"))
WRITTEN = comments((ROOT / FILE).read_text().splitlines())
DEFAULTS = Params().model_dump(mode="json")
VALUES = sorted(
    {
        (keys, repr(value)): value
        for file in PRESETS
        for keys, *both in differences(DEFAULTS, read_sections(file), file.name)
        for value in both
    }.items()
)
"""Each value that a preset gives or replaces, by its keys."""


class AnySequence(RuleBasedStateMachine):
    """What people do with a file, one after the other; what is refused changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = contextlib.ExitStack()
        folder = self.ended.enter_context(TemporaryDirectory())
        shutil.copytree(ROOT / "presets", f"{folder}/presets")
        shutil.copy(ROOT / FILE, folder)
        self.ended.enter_context(contextlib.chdir(folder))
        self.applied: list[tuple[bytes, bytes]] = []  # the file before and after each preset

    def teardown(self) -> None:
        self.ended.close()

    @rule(value=st.sampled_from(VALUES))
    def set_value(self, value: tuple[tuple[tuple[str, ...], str], Any]) -> None:
        (keys, _), new = value
        expected: dict[str, Any] = read_params(FILE).model_dump(mode="json")
        section = expected
        for key in keys[:-1]:
            section = section[key]
            if not isinstance(section, dict) or key == "kind":
                return
        section[keys[-1]] = new
        text = with_values(FILE.read_text(), {keys: new})
        try:
            found = checked_params(parsed(text), "")
        except UserError:
            return
        assert found == checked_params(expected, "")
        FILE.write_text(text)

    @rule(preset=st.sampled_from(PRESETS))
    def apply(self, preset: Path) -> None:
        before = FILE.read_bytes()
        try:
            applied = apply_preset(preset.stem)
        except UserError:
            assert FILE.read_bytes() == before
            return
        if FILE.read_bytes() == before:
            assert applied.changes == []
        else:
            assert FILE.read_text().partition("\n")[0].endswith(preset.stem)
            self.applied.append((before, FILE.read_bytes()))
        assert not list(differences(read_params(FILE).model_dump(mode="json"), read_sections(preset), preset.name))

    @rule()
    def undo(self) -> None:
        now = FILE.read_bytes()
        if self.applied and self.applied[-1][1] == now:
            undo_preset()
            now = self.applied.pop()[0]
        else:
            with pytest.raises(
                UserError, match="is not as preset" if now.startswith(HEADER.encode()) else "names none"
            ):
                undo_preset()
        assert FILE.read_bytes() == now

    @invariant()
    def the_file_is_valid_and_keeps_its_comments(self) -> None:
        read_params(FILE)
        assert Counter(WRITTEN) <= Counter(comments(FILE.read_text().splitlines()))


test_any_sequence = AnySequence.TestCase
test_any_sequence.settings = settings(max_examples=settings.default.max_examples // 4, stateful_step_count=8)
