"""Parameters of params.yaml: value, default, range and meaning of each."""

from __future__ import annotations

from pathlib import Path

from rulka.cli.options import AsJson, report, say
from rulka.stages.outputs import check_file, new_file


def list_(key: str = "", /, changed: bool = False, as_json: AsJson = False) -> None:
    """List all parameters with value, default, type, range and meaning.

    Example: `rulka params list ppo --changed`

    Args:
        key: a parameter or a section; if omitted, all.
        changed: only parameters that differ from their default.
        as_json: print one JSON list.
    """
    from rulka.params import PARAMS_FILE, read_sections
    from rulka.params.schema import parameters_below

    found = parameters_below(key, read_sections(PARAMS_FILE))
    if changed:
        found = [parameter for parameter in found if parameter.value not in (None, parameter.default)]
    report([parameter._asdict() for parameter in found], lambda: "\n".join(map(str, found)), as_json)


def schema(out: Path = Path("params.schema.json")) -> None:
    """Write the JSON schema of params.yaml, for validation and hints in editors.

    Example: `rulka params schema --out params.schema.json`

    Args:
        out: JSON file to write.
    """
    from rulka.params import PARAMS_FILE
    from rulka.params.schema import schema_text

    with new_file(check_file(out, ".json")) as beside:
        beside.write_text(schema_text(), encoding="utf-8")
    say(f"{out}: with the line `# yaml-language-server: $schema={out}` in {PARAMS_FILE}, editors check and explain it")
